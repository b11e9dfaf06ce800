"""Where data sets are looked for, and where downloads and decoded copies are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache: $XDG_CACHE_HOME/fedmosaic, else ~/.cache/fedmosaic. Not created here."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "fedmosaic"


def root(directory: str) -> Path:
    """``data.dir`` with ``~`` resolved, or the user's cache where it is empty."""
    return Path(directory).expanduser() if directory else cache_dir() / "data"


def how_to_get(name: str, tried: list[Path], more: str = "") -> str:
    """One line for a data set that is not there: the places tried and the ways to it."""
    places = ", ".join(str(path) for path in tried)
    return (
        f"data set {name!r} not found in {places}: set data.dir to the folder that holds it, or "
        f"data.download = true{more}"
    )
