"""Call the command line in this process, or start it as a process."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable

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
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", words)
        program()
    return Done(words, int(ended.value.code or 0), output.getvalue(), errors.getvalue())


def command_line(*arguments: object) -> list[str]:
    """Return the command that starts ``fedmosaic`` as a process from any folder."""
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from deploy.cli import main; main()"
    return [sys.executable, "-c", source, *map(str, arguments)]


def interruptible(*arguments: object) -> subprocess.Popen[str]:
    """Start ``fedmosaic`` as a process that Ctrl-C reaches, with its errors in a pipe."""
    return subprocess.Popen(
        command_line(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def fedmosaic(*arguments: object, **env: str) -> Done:
    """Run ``fedmosaic`` as a process until it ends."""
    return subprocess.run(
        command_line(*arguments),
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
