"""The command line: typed in this process, or started as its users start it."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from common.settings.version import ROOT
from deploy.cli import main
from tests.support.waiting import PATIENCE

Done = subprocess.CompletedProcess[str]


def typed(*arguments: object) -> Done:
    """``fedmosaic`` with these arguments, in this process: what it says and its exit status.

    For all that does not depend on the process: a process of its own takes three seconds of
    processor time to import what it needs.
    """
    words = ["fedmosaic", *map(str, arguments)]
    said, complained = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
        pytest.raises(SystemExit) as left,
    ):
        patch.setattr(sys, "argv", words)
        main()
    return Done(words, int(left.value.code or 0), said.getvalue(), complained.getvalue())


def command_line(*arguments: object) -> list[str]:
    """The same as the command line of a process, wherever it is started."""
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from deploy.cli import main; main()"
    return [sys.executable, "-c", source, *map(str, arguments)]


def fedmosaic(*arguments: object, **env: str) -> Done:
    """``fedmosaic`` in a process of its own, to its end."""
    return subprocess.run(
        command_line(*arguments),
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
