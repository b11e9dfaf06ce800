"""Clients' data in the layout of PFLlib and HtFLlib: ``train/K.npz`` and ``test/K.npz``.

Each file keeps, under ``data``, a pickled dictionary of images ``x`` and labels ``y``. Client K is
owner K. ``config.json`` beside them may tell ``num_classes``.

PFLlib (Zhang et al. 2023, "PFLlib: Personalized Federated Learning Library").
"""

import json
from pathlib import Path

import numpy as np
from torch import Tensor

from common.config import Data
from common.data import arrays, decoded
from common.data.dataset import Dataset, measured
from common.data.unpickle import read_npz


def load_npz(data: Data) -> Dataset:
    """All clients' samples of ``data.dir``; classes are numbers. The name is that of the folder."""
    root = decoded.given(data, "npz")
    files = {part: _files(root / part) for part in ("train", "test")}
    if odd := sorted(files["train"].keys() ^ files["test"].keys()):
        missing = "test" if odd[0] in files["train"] else "train"
        raise ValueError(f"{root / missing / str(odd[0])}.npz is missing")
    paths = [path for part in files.values() for path in part.values()]
    tensors = decoded.kept("npz", paths, lambda: _decode(files))
    classes = _classes(root, arrays.numbered(tensors["y"], tensors["y_test"]))
    return measured(root.name, classes, **tensors)


def _classes(root: Path, seen: tuple[str, ...]) -> tuple[str, ...]:
    """All classes, where the generator's ``config.json`` tells of more than are ``seen``."""
    path = root / "config.json"
    if not path.is_file():
        return seen
    try:
        told = json.loads(path.read_bytes())["num_classes"]
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(f"{path}: damaged, or without 'num_classes'") from None
    if type(told) is not int or told < len(seen):
        raise ValueError(f"{path}: num_classes = {told!r}, but there are labels to {seen[-1]}")
    return tuple(str(c) for c in range(told))


def _files(folder: Path) -> dict[int, Path]:
    """The clients' files in order, from 0 on."""
    found = {int(p.stem): p for p in folder.glob("*.npz") if p.stem.isdecimal()}
    for k in range(max(len(found), 1)):
        if k not in found:
            raise ValueError(f"{folder / str(k)}.npz is missing")
    return dict(sorted(found.items()))


def _decode(files: dict[str, dict[int, Path]]) -> dict[str, Tensor]:
    """x, y and owner of both parts."""
    read = {part: [(path, k, _pair(path)) for k, path in of.items()] for part, of in files.items()}
    train, test = ([(str(at), k, pair) for at, k, pair in of if pair] for of in read.values())
    return arrays.tensors(train, test)


def _pair(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """One client's images and labels, if it has any."""
    held = read_npz(path, "data")
    try:
        return arrays.pair(held)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
