"""Keep paths inside a run's folder relative to it, so that the folder can be moved and copied."""

import os
from collections.abc import Mapping
from pathlib import Path

from common.settings.parse import NODE
from common.settings.section import Value

OF_A_RUN = ("data.dir", "data.public-dir", "state-dir", "weights", "membership")
OF_A_NODE = ("data-dir", "public-dir", "state-dir")


def places(flat: Mapping[str, Value]) -> list[str]:
    """Return the keys of all settings that name a folder or file, of all clients or of one."""
    return [
        key
        for key, value in flat.items()
        if value and (key in OF_A_RUN or (NODE.match(key) and key.rpartition(".")[2] in OF_A_NODE))
    ]


def relative(path: str, folder: Path) -> str:
    """Return a path inside ``folder`` relative to it, and any other path unchanged."""
    inside = os.path.isabs(path) and Path(path).is_relative_to(folder)
    return os.path.relpath(path, folder) if inside else path


def to_relative(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return a run config in the form of ``config.toml`` in ``folder``, with relative paths."""
    inside = {
        key: relative(os.path.abspath(str(flat[key])), folder)
        for key in (*places(flat), "plugins")
        if flat.get(key)
    }
    return {**flat, **inside, "out": "."}


def to_absolute(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return the run config of ``config.toml`` in ``folder``, with absolute paths.

    Earlier releases wrote ``out`` and the paths inside it as absolute; these paths are changed to
    the folder's present place.
    """
    before = folder / str(flat.get("out", ""))
    inside = {
        key: str(folder / relative(str(flat[key]), before))
        for key in (*places(flat), "plugins")
        if flat.get(key)
    }
    return {**flat, **inside, "out": str(folder)}
