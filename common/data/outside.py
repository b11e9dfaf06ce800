"""Data sets and partitions of plug-ins: what they give is checked before it is used."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.config import Data
from common.data.dataset import Dataset
from common.errors import at, line

Load = Callable[[Data], Dataset]


def loader(name: str, found: object) -> Load:
    """How the plug-in ``found`` is loaded: a ``Dataset``, or a function that gives one.

    The function is given the settings of [data], or nothing if it takes nothing.

    Raises ``ValueError``, one line, for what is neither.
    """
    if isinstance(found, Dataset):
        return lambda data: _checked(name, found)
    if not callable(found):
        raise ValueError(
            f"data set {name!r} is of type {type(found).__name__}; it should be a Dataset or a "
            "function that gives one"
        )
    takes, make = len(inspect.signature(found).parameters), guarded(f"data set {name!r}", found)

    def load(data: Data) -> Dataset:
        made = make(data) if takes else make()
        with placed(found):
            return _checked(name, made)

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


def _checked(name: str, made: object) -> Dataset:
    """``made``, if it is what a ``Dataset`` promises; else a one-line ``ValueError``."""
    if not isinstance(made, Dataset):
        raise ValueError(
            f"data set {name!r} gives a value of type {type(made).__name__}; it should be a Dataset"
        )

    def check(what: str, x: Tensor, should: str, *, good: bool) -> None:
        if not good:
            got = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
            raise ValueError(f"data set {name!r}: {what} is {got}; it should be {should}")

    images = f"uint8 or float32 (N, C, H, W), as {tuple(made.x.shape[1:])} in all parts"
    for what, x in (("x", made.x), ("x_test", made.x_test)):
        kind = x.dtype in (torch.uint8, torch.float32) and x.dtype == made.x.dtype
        check(what, x, images, good=kind and x.ndim == 4 and x.shape[1:] == made.x.shape[1:])
    for what, y, x in (("y", made.y, made.x), ("y_test", made.y_test, made.x_test)):
        shape = y.dtype == torch.int64 and y.shape == x.shape[:1]
        check(what, y, f"int64 ({len(x)},)", good=shape)
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < made.num_classes:
            top = made.num_classes - 1
            raise ValueError(
                f"data set {name!r}: {what} is {int(y.min())} to {int(y.max())}; with "
                f"{made.num_classes} classes it should be 0 to {top}"
            )
    if not len(made.mean) == len(made.std) == made.x.shape[1]:
        raise ValueError(
            f"data set {name!r}: mean and std have {len(made.mean)} and {len(made.std)} numbers; "
            f"it should be one for each of {made.x.shape[1]} channels"
        )
    return made


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
