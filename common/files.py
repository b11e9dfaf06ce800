"""Files that survive a crash, a full disk and a killed writer."""

import contextlib
import glob
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

LONGEST_INTEGER = 25
"""Digits of an integer in a JSON file; a float holds any such number."""


def read_text(path: Path) -> str:
    """Return the text of a user's file: UTF-8, with or without a byte order mark.

    Raises ``ValueError``, one line with the path, for other bytes, ``OSError`` without the file.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is no text in UTF-8") from None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ``ValueError``, one line with the path, if it is
    damaged, ``OSError`` without the file."""
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML file; raise ``ValueError`` also for one with deep nesting."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON file.

    Raises ``ValueError`` also for one with deep nesting, and for an integer of more than
    ``LONGEST_INTEGER`` digits, with which no code calculates without an error.
    """
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)


def home() -> Path:
    """Return the user's home folder, or for a user without one a folder for temporary files."""
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an entry of the user id
        return Path(tempfile.gettempdir(), f"home-{os.getuid()}")


class Damaged(ValueError):
    """Error with a complete line: a file is damaged or missing, or a folder cannot be written."""


def check_regular(path: Path, root: Path | None = None) -> None:
    """Raise ``ValueError``, one line, unless ``path`` is a regular file, inside ``root`` if given.

    Links are followed. Opening a named pipe would block, and a device can have no end. ``root`` is
    for paths in the content of a file, which could name any file of this machine.
    """
    shown = "".join(c if c.isprintable() else "?" for c in str(path))
    try:
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except (OSError, RuntimeError, ValueError) as error:  # also a loop of links, or a null byte
        reason = getattr(error, "strerror", None) or "no valid path"
        raise ValueError(f"{shown}: cannot be read ({reason})") from None
    if root is not None and not target.is_relative_to(root.resolve()):
        raise ValueError(f"{shown} is outside of {root}; only files inside are read")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{shown}: not a regular file")


FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)


def write_atomically(
    path: Path, data: bytes | Iterable[bytes | memoryview], *, private: bool = False
) -> None:
    """Write ``data``, bytes or pieces in their order, to a file atomically (see ``replaced``)."""
    with replaced(path, private=private) as temporary, open(temporary, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def write_all(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text to the file of its name in ``folder``, atomically; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


@contextlib.contextmanager
def replaced(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield an empty temporary file that replaces ``path`` atomically at the end of the context.

    ``private``: only the owner may read the file. A failed write removes its temporary file. The
    next write of the same path removes the temporary file of a killed process.

    Raises ``OSError`` naming ``path``; an old file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _remove_abandoned(path)
    try:
        os.close(os.open(temporary, FLAGS, 0o600 if private else 0o666))
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def written_in(folder: Path, what: str) -> Iterator[None]:
    """Add ``folder`` to an ``OSError`` of the block, whose temporary files have no names."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, for {what}", str(folder)) from None


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of ``path`` whose processes have ended."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        writer = left.name.rpartition(".")[2]
        if writer.isdigit() and not _is_running(int(writer)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # another user's process may be running
        return not isinstance(error, ProcessLookupError)
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename durable on systems where a folder can be opened and synchronised."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def in_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by value: a2 before a10."""
    return [(int(run or 0) if i % 2 else 0, run) for i, run in enumerate(re.split(r"(\d+)", name))]
