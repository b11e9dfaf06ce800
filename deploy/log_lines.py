"""Log lines of a command as JSON objects, or only those from some level on.

Flower's programs print text and cannot be told otherwise. So a process beside the command reads all
that the command prints. It stays when the command becomes another program (``fedmosaic node``), and
ends with the last program that prints.
"""

import atexit
import json
import os
import re
import select
import signal
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import BinaryIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
PATIENCE = 5.0  #: seconds that the end of the command waits for its last lines to be written
COLOUR = re.compile("\x1b\\[[0-9;]*m")
FLOWER = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*(?:\d[\d :,-]+)?: +(.*)", re.DOTALL)
"""A line of Flower's logger: level, time at level DEBUG, message."""
OURS = re.compile(r"(warning|error): +(.*)", re.DOTALL)
MORE = ("Traceback ", " ", "\t")  #: beginnings of lines that belong to the line before


def converted(lines: Iterable[str], form: str, level: str) -> Iterator[str]:
    """Yield the lines whose level is at least ``level``, as text or as JSON.

    A JSON object has the keys ``time`` (ISO 8601, UTC), ``level`` and ``message``. A line that
    names no level has level info, or that of the line before if it continues a traceback.
    """
    current = "info"
    for line in lines:
        text = COLOUR.sub("", line.rstrip("\n"))
        if match := FLOWER.fullmatch(text) or OURS.fullmatch(text):
            current = match[1].lower().replace("critical", "error")
        elif not text.startswith(MORE):
            current = "info"
        if not text or LEVELS.index(current) < LEVELS.index(level):
            continue
        if form == "json":
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            message = match[2] if match else text
            line = json.dumps({"time": now, "level": current, "message": message}) + "\n"
        yield line


def convert_output(form: str, level: str, *, errors_only: bool = False) -> None:
    """Convert all further output of this process and of the programs that it starts or becomes.

    ``errors_only``: leave standard output, which has a result, as it is. Nothing is done for text
    from level info on.
    """
    if (form, level) == ("text", "info"):
        return
    streams = (2,) if errors_only else (1, 2)
    reading, writing = os.pipe()
    done, end = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        for stream in streams:
            os.dup2(writing, stream)
        for descriptor in (reading, writing, end):
            os.close(descriptor)
        atexit.register(_await_last_line, streams, done)
        return
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # before the command goes on and may end
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:  # not a child of a program that waits for its children
            os.close(writing)
            with os.fdopen(reading, "rb") as lines, os.fdopen(streams[0], "wb") as printed:
                _copy(lines, printed, form, level)
    finally:
        os._exit(0)


def _copy(lines: BinaryIO, printed: BinaryIO, form: str, level: str) -> None:
    texts = (line.decode(errors="replace") for line in lines)
    for line in converted(texts, form, level):
        printed.write(line.encode())
        printed.flush()


def _await_last_line(streams: Iterable[int], done: int) -> None:
    """Close the output, and wait until it is written, before a container ends."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(silence, stream)
    select.select([done], [], [], PATIENCE)
