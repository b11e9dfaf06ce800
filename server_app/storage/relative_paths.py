"""A run's folder keeps the paths inside it as relative, so that it can be moved and copied."""

import os
from collections.abc import Mapping
from pathlib import Path

from common.settings.parse import NODE
from common.settings.section import Value

OF_A_RUN = ("data.dir", "data.public-dir", "state-dir", "weights")
OF_A_NODE = ("data-dir", "public-dir", "state-dir")


def places(flat: Mapping[str, Value]) -> list[str]:
    """Return the keys of folders and files that are set, of all clients or of one."""
    return [
        key
        for key, value in flat.items()
        if value and (key in OF_A_RUN or (NODE.match(key) and key.rpartition(".")[2] in OF_A_NODE))
    ]


def relative(path: str, folder: Path) -> str:
    """Return a path inside ``folder`` as relative to it; any other stays as it is."""
    inside = os.path.isabs(path) and Path(path).is_relative_to(folder)
    return os.path.relpath(path, folder) if inside else path


def to_relative(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return a run config as the run in ``folder`` keeps it in ``config.toml``."""
    inside = {
        key: relative(os.path.abspath(str(flat[key])), folder)
        for key in (*places(flat), "plugins")
        if flat.get(key)
    }
    return {**flat, **inside, "out": "."}


def to_absolute(flat: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return the run config that ``config.toml`` in ``folder`` has, with absolute paths.

    Earlier releases kept ``out`` and what is inside it as absolute: these paths now lead to the
    folder where it lies.
    """
    before = folder / str(flat.get("out", ""))
    inside = {
        key: str(folder / relative(str(flat[key]), before))
        for key in (*places(flat), "plugins")
        if flat.get(key)
    }
    return {**flat, **inside, "out": str(folder)}
