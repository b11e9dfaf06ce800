"""Call the command line in this process, or start it as a process."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from common.settings.version import ROOT
from deploy.cli import main
from tests.support.waiting import PATIENCE

Done = subprocess.CompletedProcess[str]


def typed(*arguments: object, program: Callable[[], object] = main) -> Done:
    """Call ``fedmosaic`` in this process; return its exit status and output.

    It saves the three seconds of processor time that the imports of a new process take.
    ``program``: another console script.
    """
    words = ["fedmosaic", *map(str, arguments)]
    output, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        former_signals(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", words)
        program()
    return Done(words, int(ended.value.code or 0), output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def former_signals() -> Iterator[None]:
    """Restore what signals do at the end of the block, in which a command may change it.

    The command itself keeps its handlers until its process ends, because a thread may outlive it.
    """
    here = threading.current_thread() is threading.main_thread()  # another one may set none
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM) if here else ()
    handlers, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if here:
            signal.setitimer(signal.ITIMER_REAL, 0)  # before SIGALRM ends the process again
        for number, handler in handlers.items():
            signal.signal(number, handler)


def command_line(*arguments: object) -> list[str]:
    """Return the command that starts ``fedmosaic`` as a process from any folder."""
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from deploy.cli import main; main()"
    return [sys.executable, "-c", source, *map(str, arguments)]


def interruptible(*arguments: object) -> subprocess.Popen[str]:
    """Start ``fedmosaic`` as a process that Ctrl-C reaches, with its errors in a pipe."""
    output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command_line(*arguments), **output, text=True, preexec_fn=heed)


def fedmosaic(*arguments: object, **env: str) -> Done:
    """Run ``fedmosaic`` as a process until it ends."""
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": {**os.environ, **env}}
    line = command_line(*arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, **quiet)


def completed(*arguments: object) -> Done:
    """Call ``fedmosaic`` as ``typed`` does, and fail unless it succeeds."""
    done = typed(*arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def error_of(*arguments: object) -> str:
    """Call ``fedmosaic`` as ``typed`` does; return the single line with which it fails."""
    done = typed(*arguments)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stdout + done.stderr
    return done.stderr
