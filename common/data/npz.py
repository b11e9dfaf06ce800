"""Clients' data in the layout of PFLlib and HtFLlib: ``train/K.npz`` and ``test/K.npz``.

Each file keeps, under ``data``, a pickled dictionary of images ``x`` and labels ``y``. Client K is
owner K. PFLlib (Zhang et al. 2023, "PFLlib: Personalized Federated Learning Library").
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from common.config import Data
from common.data import arrays, decoded
from common.data.dataset import Dataset, channel_statistics
from common.data.unpickle import read_npz

PARTS = {"train": "", "test": "_test"}


def load_npz(data: Data) -> Dataset:
    """All clients' samples of ``data.dir``; classes are numbers. The name is that of the folder."""
    root = decoded.given(data, "npz")
    files = {part: _files(root / part) for part in PARTS}
    if odd := sorted(files["train"].keys() ^ files["test"].keys()):
        missing = "test" if odd[0] in files["train"] else "train"
        raise ValueError(f"{root / missing / str(odd[0])}.npz is missing")
    paths = [path for part in files.values() for path in part.values()]
    tensors = decoded.kept("npz", paths, lambda: _decode(files))
    classes = arrays.numbered(tensors["y"], tensors["y_test"])
    mean, std = channel_statistics(tensors["x"])
    return Dataset(root.name, classes, mean=mean, std=std, **tensors)


def _files(folder: Path) -> dict[int, Path]:
    """The clients' files in order, from 0 on."""
    found = {int(p.stem): p for p in folder.glob("*.npz") if p.stem.isdecimal()}
    for k in range(max(len(found), 1)):
        if k not in found:
            raise ValueError(f"{folder / str(k)}.npz is missing")
    return dict(sorted(found.items()))


def _decode(files: dict[str, dict[int, Path]]) -> dict[str, Tensor]:
    """x, y and owner of both parts."""
    read = {part: {str(path): _pair(path) for path in files[part].values()} for part in PARTS}
    arrays.check_alike(read["train"] | read["test"])
    tensors = dict[str, Tensor]()
    for part, suffix in PARTS.items():
        names = (f"x{suffix}", f"y{suffix}", f"owner{suffix}")
        tensors |= zip(names, arrays.joined(read[part], list(files[part])), strict=True)
    return tensors


def _pair(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One client's images and labels."""
    held = read_npz(path, "data")
    if not isinstance(held, dict) or not {"x", "y"} <= held.keys():
        has = ", ".join(map(repr, held)) if isinstance(held, dict) else type(held).__name__
        raise ValueError(f"{path}: 'data' has no 'x' and 'y'; it has {has or 'nothing'}")
    try:
        x = arrays.images(held["x"])
        return x, arrays.labels(held["y"], len(x))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
