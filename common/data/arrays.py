"""Clients' data as other projects keep them: PFLlib's .npz files and LEAF's JSON files.

Arrays are made into images (N, C, H, W) and labels (N,). Bytes stay bytes; floats stay what they
are, whether in [0, 1], in [-1, 1] or anything else.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.dataset import Dataset, measured
from common.data.unpickle import read_npz
from common.files import in_order
from common.settings.config import Data

CHANNELS = (1, 3)  #: of an image whose last axis is taken for its channels
NOBODY = -1  #: owner of the test samples of a user who does not train

Pair = tuple[np.ndarray, np.ndarray]  #: images and labels
Samples = Sequence[tuple[str, int, Pair]]
"""Images and labels, where they are from and whose they are, for one owner after the other."""


def load_npz(data: Data) -> Dataset:
    """Load all clients' samples of ``data.dir``; classes are numbers, the name is the folder's.

    ``train/K.npz`` and ``test/K.npz`` keep, under ``data``, a pickled dictionary of images ``x``
    and labels ``y``. Client K is owner K. ``config.json`` beside them may tell ``num_classes``
    (Zhang et al. 2023, "PFLlib: Personalized Federated Learning Library"; HtFLlib).
    """
    root = decoded.given(data, "npz")
    files = {part: _numbered_files(root / part) for part in ("train", "test")}
    if odd := sorted(files["train"].keys() ^ files["test"].keys()):
        missing = "test" if odd[0] in files["train"] else "train"
        raise ValueError(f"{root / missing / str(odd[0])}.npz is missing")

    def decode() -> dict[str, Tensor]:
        parts = (
            [(str(path), k, _from_npz(path)) for k, path in of.items()] for of in files.values()
        )
        return tensors(*([(at, k, pair) for at, k, pair in part if pair] for part in parts))

    paths = [path for part in files.values() for path in part.values()]
    found = decoded.kept("npz", paths, decode)
    return measured(root.name, _classes(found, root / "config.json"), **found)


def _numbered_files(folder: Path) -> dict[int, Path]:
    """Return the clients' files in order, from 0 on."""
    found = {int(p.stem): p for p in folder.glob("*.npz") if p.stem.isdecimal()}
    for k in range(max(len(found), 1)):
        if k not in found:
            raise ValueError(f"{folder / str(k)}.npz is missing")
    return dict(sorted(found.items()))


def _from_npz(path: Path) -> Pair | None:
    """Return one client's images and labels, if it has any."""
    held = read_npz(path, "data")
    with _within(str(path)):
        return pair(held)


def load_leaf(data: Data) -> Dataset:
    """Load all users' samples of ``data.dir``; classes are numbers, the name is the folder's.

    Each ``train/*.json`` and ``test/*.json`` has ``users``, ``num_samples`` and ``user_data``,
    which gives each user's ``x`` and ``y``: rows of numbers, such as FEMNIST's 784 in [0, 1], or
    nested lists. Users are owners in the order of their names; where a test sample is of a user who
    does not train, the test is nobody's own. Caldas et al. 2018, "LEAF: A Benchmark for Federated
    Settings".
    """
    root = decoded.given(data, "leaf")
    files = {part: sorted((root / part).glob("*.json")) for part in ("train", "test")}
    for part, found in files.items():
        if not found:
            raise ValueError(f"{root / part}: no *.json files")
    train, test = files.values()
    kept = decoded.kept("leaf", [*train, *test], lambda: _from_json(train, test))
    return measured(root.name, _classes(kept), **kept)


def _from_json(*parts: list[Path]) -> dict[str, Tensor]:
    """Return x, y and owner of both parts, for training and for testing."""
    read = [[(path, _users(path)) for path in part] for part in parts]
    names = {user for _, users in read[0] for user in users}
    number = {user: i for i, user in enumerate(sorted(names, key=in_order))}
    train, test = (
        [
            (f"{path}: user {user!r}", number.get(user, NOBODY), own)
            for path, users in part
            for user, own in users.items()
        ]
        for part in read
    )
    found = tensors(train, test)
    if any(owner == NOBODY for _, owner, _ in test):
        del found["owner_test"]
    return found


def _users(path: Path) -> dict[str, Pair]:
    """Return the images and labels of each user in one file who has samples."""
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: damaged or no JSON ({error})") from None
    pairs: dict[str, Pair] = {}
    with _within(str(path)):
        if not isinstance(held, dict) or not isinstance(held.get("user_data"), dict):
            raise ValueError("there is no 'user_data' by user in it")
        users = held.get("users", list(held["user_data"]))
        told = held.get("num_samples", [None] * len(users))
        if len(told) != len(users):
            raise ValueError(f"num_samples has {len(told)} entries for {len(users)} users")
        for user, n in zip(users, told, strict=True):
            with _within(f"user {str(user)!r}"):
                own = pair(held["user_data"].get(user))
                if n not in (None, len(own[1]) if own else 0):
                    raise ValueError(f"not {n} samples, as num_samples says")
            if own:
                pairs[str(user)] = own
    return pairs


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Put ``place`` before the line of a ``ValueError`` that the block raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def pair(held: object) -> Pair | None:
    """Images and labels of a dictionary with ``x`` and ``y``; None if it holds no samples.

    Raises ``ValueError``, one line, for anything else.
    """
    if not isinstance(held, dict) or not {"x", "y"} <= held.keys():
        has = ", ".join(map(repr, held)) if isinstance(held, dict) else type(held).__name__
        raise ValueError(f"there are no 'x' and 'y', but {has or 'nothing'}")
    x, y = held["x"], held["y"]
    if _nothing(x) and _nothing(y):
        return None
    pictures = images(x)
    return pictures, labels(y, len(pictures))


def _nothing(values: object) -> bool:
    if isinstance(values, np.ndarray):
        return bool(values.shape[:1] == (0,))
    return bool(values == [])


def images(values: object) -> np.ndarray:
    """uint8 or float32 (N, C, H, W) from (N, H, W, C), (N, C, H, W), (N, H, W) or square (N, H·W).

    Integers from 0 to 255 are bytes. Also takes lists of arrays, and arrays of them. Raises
    ``ValueError``, one line, for what are no images.
    """
    x = _array(values)
    if x.ndim == 2:
        side = math.isqrt(x.shape[1])
        if side * side != x.shape[1]:
            raise ValueError(f"x has samples of {x.shape[1]} numbers, which make no square image")
        x = x.reshape(len(x), 1, side, side)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"x has the shape {x.shape}, which is none of images")
    if x.dtype.kind in "biu" and (not x.size or (x.min() >= 0 and x.max() <= 255)):
        return np.ascontiguousarray(x, dtype=np.uint8)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(x).all():
        raise ValueError("x holds numbers that are not finite")
    return x


def labels(values: object, samples: int) -> np.ndarray:
    """int64 (N,) from 0 on; raises ``ValueError``, one line, for what are no N samples' labels."""
    y = _array(values)
    if y.shape != (samples,):
        raise ValueError(f"y has the shape {y.shape}, but there are {samples} samples")
    if samples and ((y != np.floor(y)).any() or y.min() < 0):
        raise ValueError("y holds what are no classes 0, 1, 2, …")
    return y.astype(np.int64)


def _array(values: object) -> np.ndarray:
    """Numbers; an array of equal arrays is one array."""
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.asarray([np.asarray(row) for row in array])
    except ValueError:
        raise ValueError("its samples differ in shape") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype}, not numbers")
    return array


def tensors(train: Samples, test: Samples) -> dict[str, Tensor]:
    """x, y and owner of both parts, by the names of ``Dataset``.

    Raises ``ValueError`` for a part without samples, and for images that differ in shape or type.
    """
    found: dict[str, Tensor] = {}
    for suffix, part in (("", train), ("_test", test)):
        if not part:
            raise ValueError("there are no samples for training, or none for testing")
        first, _, (like, _) = train[0]
        for name, _, (x, _) in part:
            if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
                raise ValueError(
                    f"{name}: images are {x.dtype} {x.shape[1:]}, "
                    f"those of {first} {like.dtype} {like.shape[1:]}"
                )
        x, y = (np.concatenate(side) for side in zip(*(pair for *_, pair in part), strict=True))
        sizes = torch.tensor([len(labels) for *_, (_, labels) in part])
        owner = torch.tensor([k for _, k, _ in part]).repeat_interleave(sizes)
        found |= {f"x{suffix}": torch.from_numpy(x), f"y{suffix}": torch.from_numpy(y)}
        found[f"owner{suffix}"] = owner
    return found


def _classes(samples: dict[str, Tensor], config: Path | None = None) -> tuple[str, ...]:
    """Return the classes' numbers: those seen, and more if a generator's ``config`` has them."""
    top = max(int(y.max()) for y in (samples["y"], samples["y_test"]) if len(y))
    told = top + 1
    if config is not None and config.is_file():
        try:
            told = json.loads(config.read_bytes())["num_classes"]
        except (OSError, ValueError, TypeError, KeyError):
            raise ValueError(f"{config}: damaged, or without 'num_classes'") from None
        if type(told) is not int or told <= top:
            raise ValueError(f"{config}: num_classes = {told!r}, but there are labels to {top}")
    return tuple(str(c) for c in range(told))
