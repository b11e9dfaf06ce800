"""Format every error as one line, and write tracebacks to a file.

The line for an error in a plug-in, the user's own code, also has the called hook, the file and the
line number. ``report`` writes the traceback of such an error, and of every unexpected error, to
``errors.log`` in the run's folder.
"""

import inspect
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from common.extras import missing
from common.files import home

LOG = "errors.log"  #: file in a run's folder; for errors outside a run, in ``HOME``
HOME = home() / ".fedmosaic"
LONGEST = 400  #: characters of a line from a client
MOST = 3000  #: characters of a line; a user's file can have a value of any length
FORESEEN = (ValueError, RuntimeError, FloatingPointError, OSError, ModuleNotFoundError)
"""Types of errors whose first line is written for users."""
PLUGINS: set[str] = set()
"""Top-level modules of plug-ins that this process imported or tried to import."""
WORDS = {
    "too_short": "a list with {min_length} or more entries",
    "too_long": "a list with at most {max_length} entries",
    "string_too_short": "a name",
}
"""What a value should be, by pydantic's type of error; in braces, entries of its context."""
REPORTED = "its traceback is in"


def first_line(error: BaseException | str, most: int | None = None) -> str:
    """Return the first non-empty line of an error, with ? for unprintable characters.

    ``most``: maximum number of characters.
    """
    text = f"{error.title}: {invalid(error)}" if isinstance(error, ValidationError) else str(error)
    text = str(error.msg) if isinstance(error, SyntaxError) else text
    text = missing(error) if isinstance(error, ModuleNotFoundError) else text
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename} cannot be used: {error.strerror}"
    first, _, more = text.strip().partition("\n")
    if first.endswith(":"):  # torch gives the reason in the second line
        first = f"{first} {more.strip().partition(chr(10))[0]}".strip()
    if most is None and len(first) > MOST:  # the end often has the remedy
        first = f"{first[: MOST // 2]} … {first[-MOST // 2 :]}"
    shown = "".join(c if c.isprintable() else "?" for c in first[:most])
    return shown or ("" if isinstance(error, str) else type(error).__name__)


def line(error: BaseException, most: int | None = None, *, typed: bool = False) -> str:
    """Return the first line of an error, and the place in a plug-in where it was raised.

    ``most``: maximum number of characters of the first line; ``typed``: add the type of the error.
    Unforeseen errors always have their type.
    """
    text = first_line(error, most)
    if not isinstance(error, FORESEEN) or (typed and not isinstance(error, ValidationError)):
        text = f"{type(error).__name__}: {text}"
    where = place(error)
    return f"{text} ({where})" if where and where not in text else text


def place(error: BaseException | None) -> str:
    """Return hook, file and line of the plug-in that raised an error; empty for other errors."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            return f"{error.filename}, line {error.lineno}"
        calls = traceback.walk_tb(error.__traceback__)
        frames = [(f.f_code, n) for f, n in calls if of_plugin(f.f_globals.get("__name__", ""))]
        if frames:
            return _place(frames[0][0].co_qualname, frames[-1][0].co_filename, frames[-1][1])
        error = error.__cause__
    return ""


def at(value: object) -> str:
    """Return the place of a plug-in's function or class in brackets; empty for other values."""
    code = value.func if isinstance(value, partial) else value
    code = inspect.unwrap(cast("Callable[..., object]", code))
    if not of_plugin(str(getattr(code, "__module__", ""))):
        return ""
    with suppress(OSError, TypeError):
        first = inspect.getsourcelines(code)[1]
        return f" ({_place(code.__qualname__, inspect.getfile(code), first)})"
    return ""


def _place(hook: str, file: str, number: int) -> str:
    hook = hook.partition(".<locals>")[0]
    return f"{'' if hook == '<module>' else f'in {hook}: '}{file}, line {number}"


def of_plugin(module: str) -> bool:
    """Return whether a module belongs to a plug-in."""
    return module.partition(".")[0] in PLUGINS


def invalid(error: ValidationError) -> str:
    """Return the first field that pydantic refused, with the reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(key)[:40] for key in first["loc"])
    return f"field {where!r}: {first['msg']}"


def refusal(error: ErrorDetails, key: str, pattern: str = "") -> str:
    """Return the line for a user's value that pydantic refused.

    ``pattern``: description of the allowed texts, for a text that does not match.
    """
    if error["type"] == "missing":
        return f"key {key!r} is missing"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    allowed = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] == "string_pattern_mismatch":
        allowed = pattern
    elif error["type"] in WORDS:
        allowed = WORDS[error["type"]].format_map(error.get("ctx", {}))
    value = error["input"]
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    shown = shown.lower() if isinstance(value, bool) else shown
    return f"{key} = {shown} is not allowed; it should be {allowed}"


def report(error: BaseException, folder: Path) -> str:
    """Return the line of an error with the path of its traceback, a file in ``folder``.

    A foreseen error that no plug-in raised has no traceback.
    """
    text, chain = line(error), [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    notes = [note for link in chain for note in getattr(link, "__notes__", ())]
    foreseen = isinstance(error, FORESEEN) and not place(error)
    if foreseen or any(note.startswith(REPORTED) for note in notes):
        return text
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / LOG, "a", encoding="utf-8") as file:
            trace = "".join(traceback.format_exception(error))
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n{trace}\n")
        error.add_note(f"{REPORTED} {folder / LOG}")
        text += f"; traceback: {folder / LOG}"
    return text


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Turn unforeseen errors of the block into a one-line ``ValueError``, see ``report``."""
    try:
        yield
    except Exception as error:
        text = report(error, folder)
        if text == first_line(error):
            raise
        raise ValueError(text) from error


@contextmanager
def logged_to(folder: str) -> Iterator[None]:
    """Log errors of server and clients to a file in ``folder`` instead of the terminal."""
    log = logging.getLogger("flwr.fedmosaic")
    handler = logging.FileHandler(Path(folder) / LOG, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.setLevel(logging.ERROR)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = True
        log.removeHandler(handler)
        handler.close()
