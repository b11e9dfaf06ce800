"""Keep paths inside a run's folder relative to it, so that the folder can be moved and copied."""

import os
from collections.abc import Mapping
from pathlib import Path

from common.keys import places
from common.settings.section import Value


def relative(path: str, folder: Path) -> str:
    """Return a path inside ``folder`` relative to it, and any other path unchanged."""
    inside = os.path.isabs(path) and Path(path).is_relative_to(folder)
    return os.path.relpath(path, folder) if inside else path


def to_relative(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return a run config in the form of ``config.toml`` in ``folder``, with relative paths."""
    inside = {key: relative(os.path.abspath(str(flat[key])), folder) for key in places(flat)}
    return {**flat, **inside, "out": "."}


def to_absolute(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return the run config of ``config.toml`` in ``folder``, with absolute paths.

    Earlier releases wrote ``out`` and the paths inside it as absolute; these paths are changed to
    the folder's present place.
    """
    before = folder / str(flat.get("out", ""))
    inside = {key: str(folder / relative(str(flat[key]), before)) for key in places(flat)}
    return {**flat, **inside, "out": str(folder)}
