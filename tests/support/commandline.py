"""The command line, as its users start it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def fedmosaic(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )
