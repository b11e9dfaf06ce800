"""Arrays as other projects keep them, made into images (N, C, H, W) and labels (N,).

Bytes stay bytes; floats stay what they are, whether in [0, 1], in [-1, 1] or anything else.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

CHANNELS = (1, 3)  #: of an image whose last axis is taken for its channels


def pair(held: object) -> tuple[np.ndarray, np.ndarray] | None:
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


Samples = Sequence[tuple[str, int, tuple[np.ndarray, np.ndarray]]]
"""Images and labels, where they are from and whose they are, for one owner after the other."""


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


def numbered(y: Tensor, y_test: Tensor) -> tuple[str, ...]:
    """Names of the classes of which only numbers are known."""
    top = max(int(each.max()) for each in (y, y_test) if len(each))
    return tuple(str(c) for c in range(top + 1))
