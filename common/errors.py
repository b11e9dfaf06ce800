"""Format every error as one line, and write tracebacks to a file.

The line for an error in a plug-in, the user's own code, also has the called hook, the file and the
line number. ``report`` writes the traceback of such an error, and of every unexpected error, to
``errors.log`` in the run's folder.
"""

import inspect
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

from common.renamed import hint
from common.settings.extras import missing

LOG = "errors.log"  #: in a run's folder; of what happens outside a run, in ``HOME``
HOME = Path.home() / ".fedmosaic"
LONGEST = 400  #: characters of a line that comes from a client
FORESEEN = (ValueError, RuntimeError, FloatingPointError, OSError, ModuleNotFoundError)
"""Types whose first line is written for users."""
PLUGINS: set[str] = set()
"""The top modules of plug-ins that this process has imported, or tried to."""
WORDS = {"too_short": "a list that is not empty", "string_too_short": "a name"}
REPORTED = "its traceback is in"


def first_line(what: BaseException | str, most: int | None = None) -> str:
    """Return the first line that says something, without what a terminal would not print.

    ``most``: characters at most.
    """
    text = f"{what.title}: {invalid(what)}" if isinstance(what, ValidationError) else str(what)
    text = str(what.msg) if isinstance(what, SyntaxError) else text
    text = missing(what) if isinstance(what, ModuleNotFoundError) else text
    first, _, more = text.strip().partition("\n")
    if first.endswith(":"):  # torch tells the reason in the second line
        first = f"{first} {more.strip().partition(chr(10))[0]}".strip()
    shown = "".join(c if c.isprintable() else "?" for c in first[:most])
    return shown or ("" if isinstance(what, str) else type(what).__name__)


def line(error: BaseException, most: int | None = None, *, typed: bool = False) -> str:
    """Return the first line of an error, and the place in a plug-in where it was raised.

    ``most``: characters of the first line at most; ``typed``: with the type of the error, which one
    that nobody foresaw always has.
    """
    said = first_line(error, most) + hint(error)
    if not isinstance(error, FORESEEN) or (typed and not isinstance(error, ValidationError)):
        said = f"{type(error).__name__}: {said}"
    where = place(error)
    return f"{said} ({where})" if where and where not in said else said


def place(error: BaseException | None) -> str:
    """Return the hook, file and line of a plug-in that raised an error; empty if none did."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            return f"{error.filename}, line {error.lineno}"
        calls = traceback.walk_tb(error.__traceback__)
        own = [(f.f_code, n) for f, n in calls if of_plugin(f.f_globals.get("__name__", ""))]
        if own:
            return _place(own[0][0].co_qualname, own[-1][0].co_filename, own[-1][1])
        error = error.__cause__
    return ""


def at(found: object) -> str:
    """Return, in brackets, where a plug-in's function or class is written; empty for another."""
    made = found.func if isinstance(found, partial) else found
    made = inspect.unwrap(cast("Callable[..., object]", made))
    if not of_plugin(str(getattr(made, "__module__", ""))):
        return ""
    with suppress(OSError, TypeError):
        first = inspect.getsourcelines(made)[1]
        return f" ({_place(made.__qualname__, inspect.getfile(made), first)})"
    return ""


def _place(hook: str, file: str, number: int) -> str:
    hook = hook.partition(".<locals>")[0]
    return f"{'' if hook == '<module>' else f'in {hook}: '}{file}, line {number}"


def of_plugin(module: str) -> bool:
    """Return whether a module is a plug-in's."""
    return module.partition(".")[0] in PLUGINS


def invalid(error: ValidationError) -> str:
    """Return the field that pydantic refused first, and why."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return f"field {where!r}: {first['msg']}"


def refusal(error: ErrorDetails, key: str, pattern: str = "") -> str:
    """Return the line for a value of the user's that pydantic refused.

    ``pattern``: what to say of a text that does not match.
    """
    if error["type"] == "missing":
        return f"key {key!r} is missing"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    allowed = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] == "string_pattern_mismatch":
        allowed = pattern
    value = error["input"]
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    shown = shown.lower() if isinstance(value, bool) else shown
    return f"{key} = {shown} is not allowed; it should be {WORDS.get(error['type'], allowed)}"


def report(error: BaseException, folder: Path) -> str:
    """Return the line of an error, with the file in ``folder`` that has its traceback.

    An error that was foreseen and that no plug-in raised needs no traceback.
    """
    said, chain = line(error), [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    notes = [note for each in chain for note in getattr(each, "__notes__", ())]
    foreseen = isinstance(error, FORESEEN) and not place(error)
    if foreseen or any(note.startswith(REPORTED) for note in notes):
        return said
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / LOG, "a", encoding="utf-8") as file:
            told = "".join(traceback.format_exception(error))
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}\n{told}\n")
        error.add_note(f"{REPORTED} {folder / LOG}")
        said += f"; traceback: {folder / LOG}"
    return said


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """A block whose unforeseen errors become a ``ValueError`` of one line, see ``report``."""
    try:
        yield
    except Exception as error:
        said = report(error, folder)
        if said == first_line(error):
            raise
        raise ValueError(said) from error


@contextmanager
def logged_to(folder: str) -> Iterator[None]:
    """A block that logs errors of server and clients to ``folder`` and nothing on the terminal."""
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
