"""Data sets and partitions of plug-ins: what they give is checked before it is used."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data.dataset import Dataset
from common.errors import at, line
from common.settings.config import Data

Load = Callable[[Data], Dataset]


def loader(name: str, found: object) -> Load:
    """How the plug-in ``found`` is loaded: a ``Dataset``, or a function that gives one.

    The function is given the settings of [data], or nothing if it takes nothing.

    Raises ``ValueError``, one line, for what is neither.
    """
    if isinstance(found, Dataset):
        return lambda data: found
    if not callable(found):
        raise ValueError(
            f"data set {name!r} is of type {type(found).__name__}; it should be a Dataset or a "
            "function that gives one"
        )
    takes, make = len(inspect.signature(found).parameters), guarded(f"data set {name!r}", found)

    def load(data: Data) -> Dataset:
        made: Dataset = make(data) if takes else make()
        with placed(found):
            check(name, made)
        return made

    return load


@contextmanager
def placed(found: object) -> Iterator[None]:
    """A block whose ``ValueError`` also says where the plug-in ``found`` is written."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}{at(found)}") from None


def guarded(what: str, function: Callable[..., object]) -> Callable[..., Any]:
    """``function`` of a plug-in, of which every exception is a ``ValueError`` of one line."""

    @functools.wraps(function)
    def call(*given: object, **options: object) -> object:
        try:
            return function(*given, **options)
        except Exception as error:  # whatever the plug-in's author did
            typed = not isinstance(error, ValueError)
            raise ValueError(f"{what} cannot be made: {line(error, typed=typed)}") from error

    return call


def check(name: str, made: object) -> None:
    """Raise ``ValueError``, one line, unless ``made`` is what a ``Dataset`` promises."""
    what = f"data set {name!r}"
    if not isinstance(made, Dataset):
        raise ValueError(
            f"{what} gives a value of type {type(made).__name__}; it should be a Dataset"
        )
    shape, top = tuple(made.x.shape[1:]), made.num_classes - 1
    for side, x, y, owner in (
        ("", made.x, made.y, made.owner),
        ("_test", made.x_test, made.y_test, made.owner_test),
    ):
        kind = x.dtype in (torch.uint8, torch.float32) and x.dtype == made.x.dtype
        if not (kind and x.ndim == 4 and x.shape[1:] == shape):
            images = f"uint8 or float32 (N, C, H, W), as {shape} in all parts"
            raise ValueError(f"{what}: x{side} is {_told(x)}; it should be {images}")
        for of, values, most in ((f"y{side}", y, top), (f"owner{side}", owner, math.inf)):
            if values is None:
                continue
            if values.dtype != torch.int64 or values.shape != x.shape[:1]:
                raise ValueError(f"{what}: {of} is {_told(values)}; it should be int64 ({len(x)},)")
            low, high = (int(v) for v in values.aminmax()) if len(values) else (0, 0)
            if not 0 <= low <= high <= most:
                raise ValueError(f"{what}: {of} is {low} to {high}; it should be 0 to {most}")
    if not len(made.mean) == len(made.std) == shape[0]:
        raise ValueError(
            f"{what}: mean and std have {len(made.mean)} and {len(made.std)} numbers; it should be "
            f"one for each of {shape[0]} channels"
        )


def _told(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def check_shares(name: str, shares: object, samples: int, clients: int) -> None:
    """Raise ``ValueError``, one line, unless a partition gave every client a share."""
    if not isinstance(shares, list) or len(shares) != clients:
        got = f"{len(shares)} shares" if isinstance(shares, list) else type(shares).__name__
        raise ValueError(
            f"partition {name!r} gives {got}; it should be a list of {clients} index arrays"
        )
    for k, share in enumerate(map(np.asarray, shares)):
        if not share.size:
            raise ValueError(f"partition {name!r} leaves client {k} without training samples")
        if share.ndim != 1 or share.dtype.kind not in "iu":
            raise ValueError(
                f"partition {name!r}: client {k} has {share.dtype} {share.shape}; it should be "
                "an array of indices"
            )
        if not 0 <= int(share.min()) <= int(share.max()) < samples:
            raise ValueError(
                f"partition {name!r}: client {k} has samples {share.min()} to {share.max()}; there "
                f"are 0 to {samples - 1}"
            )
