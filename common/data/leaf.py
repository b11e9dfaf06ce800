"""Users' data in LEAF's layout: ``train/*.json`` and ``test/*.json``.

Each file has ``users``, ``num_samples`` and ``user_data``, which gives each user's ``x`` and ``y``.
Users are owners in the order of their names. Images are rows of numbers, such as FEMNIST's 784 in
[0, 1], or nested lists. Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings".
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from common.config import Data
from common.data import arrays, decoded
from common.data.dataset import Dataset, measured
from common.files import in_order

Pairs = dict[str, tuple[np.ndarray, np.ndarray]]  #: images and labels
NOBODY = -1  #: who trains


def load_leaf(data: Data) -> Dataset:
    """All users' samples of ``data.dir``; classes are numbers. The name is that of the folder.

    Where a test sample is of a user who does not train, the test is nobody's own.
    """
    root = decoded.given(data, "leaf")
    files = {part: sorted((root / part).glob("*.json")) for part in ("train", "test")}
    for part, found in files.items():
        if not found:
            raise ValueError(f"{root / part}: no *.json files")
    tensors = decoded.kept("leaf", [*files["train"], *files["test"]], lambda: _decode(files))
    classes = arrays.numbered(tensors["y"], tensors["y_test"])
    return measured(root.name, classes, **tensors)


def _decode(files: dict[str, list[Path]]) -> dict[str, Tensor]:
    """x, y and owner of both parts."""
    read = {part: [(path, _users(path)) for path in found] for part, found in files.items()}
    names = {user for _, users in read["train"] for user in users}
    number = {user: i for i, user in enumerate(sorted(names, key=in_order))}
    train, test = (
        [
            (f"{path}: user {user!r}", number.get(user, NOBODY), pair)
            for path, users in told
            for user, pair in users.items()
        ]
        for told in read.values()
    )
    tensors = arrays.tensors(train, test)
    if any(owner == NOBODY for _, owner, _ in test):
        del tensors["owner_test"]
    return tensors


def _users(path: Path) -> Pairs:
    """The users of one file who have samples."""
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: damaged or no JSON ({error})") from None
    try:
        if not isinstance(held, dict) or not isinstance(held.get("user_data"), dict):
            raise ValueError("there is no 'user_data' by user in it")
        users = held.get("users", list(held["user_data"]))
        told = held.get("num_samples", [None] * len(users))
        if len(told) != len(users):
            raise ValueError(f"num_samples has {len(told)} entries for {len(users)} users")
        pairs = {
            str(user): _pair(held["user_data"].get(user), str(user), n)
            for user, n in zip(users, told, strict=True)
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {user: pair for user, pair in pairs.items() if pair}


def _pair(held: Any, user: str, told: int | None) -> tuple[np.ndarray, np.ndarray] | None:
    """One user's images and labels, if there are any."""
    try:
        pair = arrays.pair(held)
        if told not in (None, len(pair[1]) if pair else 0):
            raise ValueError(f"not {told} samples, as num_samples says")
    except ValueError as error:
        raise ValueError(f"user {user!r}: {error}") from None
    return pair
