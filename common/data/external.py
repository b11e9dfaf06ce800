"""Load data sets and partitions of plug-ins, and check their results."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data import kinds
from common.data.dataset import Dataset
from common.data.kinds import TOKENS
from common.errors import at, line
from common.objectives import OBJECTIVES
from common.settings.config import Data

Load = Callable[[Data], Dataset]


def loader(name: str, plugin: object) -> Load:
    """Return a function of [data] that loads ``plugin``, a ``Dataset`` or a function.

    The plug-in's function receives the settings of [data] unless it has no parameters.

    Raises ``ValueError``, one line, for other plug-ins.
    """
    if isinstance(plugin, Dataset):
        return lambda data: plugin
    if not callable(plugin):
        raise ValueError(
            f"data set {name!r} is of type {type(plugin).__name__}; it should be a Dataset or a "
            "function that gives one"
        )
    takes, call = len(inspect.signature(plugin).parameters), guarded(f"data set {name!r}", plugin)

    def load(data: Data) -> Dataset:
        dataset: Dataset = call(data) if takes else call()
        with located(plugin):
            check(name, dataset)
        return dataset

    return load


@contextmanager
def located(plugin: object) -> Iterator[None]:
    """Append the source location of ``plugin`` to a ``ValueError`` of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}{at(plugin)}") from None


def guarded(what: str, function: Callable[..., object]) -> Callable[..., Any]:
    """Wrap ``function`` of a plug-in so that every exception becomes a ``ValueError``, one line."""

    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> object:
        try:
            return function(*arguments, **options)
        except Exception as error:  # a plug-in can raise anything
            typed = not isinstance(error, ValueError)
            raise ValueError(f"{what} cannot be made: {line(error, typed=typed)}") from error

    return call


def check(name: str, dataset: object) -> None:
    """Raise ``ValueError``, one line, unless ``dataset`` is a valid ``Dataset``."""
    subject = f"data set {name!r}"
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"{subject} gives a value of type {type(dataset).__name__}; it should be a Dataset"
        )
    if dataset.objective not in OBJECTIVES:
        raise ValueError(
            f"{subject}: objective = {dataset.objective!r}; it should be one of "
            f"{', '.join(OBJECTIVES)}"
        )
    shape, top = tuple(dataset.x.shape[1:]), dataset.num_classes - 1
    one_each = dataset.objective == "classes"
    for side, x, y, owner in (
        ("", dataset.x, dataset.y, dataset.owner),
        ("_test", dataset.x_test, dataset.y_test, dataset.owner_test),
    ):
        alike = x.shape[1:] == shape and x.dtype == dataset.x.dtype
        if not (kinds.is_valid(x, dataset.declared) and alike):
            allowed = f"{kinds.LAYOUTS}, as {shape} in all parts"
            if dataset.declared:
                allowed += f", of the declared kind {dataset.declared!r}"
            raise ValueError(f"{subject}: x{side} is {_describe(x)}; it should be {allowed}")
        if dataset.objective == "next-token":
            _check_next(f"{subject}: y{side}", y, x, dataset)
        elif not one_each:
            _check_values(f"{subject}: y{side}", y, (len(x), dataset.num_classes), dataset)
        classes = y if one_each else None
        for field, values, most in ((f"y{side}", classes, top), (f"owner{side}", owner, math.inf)):
            if values is None:
                continue
            if values.dtype != torch.int64 or values.shape != x.shape[:1]:
                hint = ""
                if field[0] == "y" and (values.ndim == 2 or values.is_floating_point()):
                    hint = "; a data set of labels or numbers says so in its field objective"
                raise ValueError(
                    f"{subject}: {field} is {_describe(values)}; it should be int64 "
                    f"({len(x)},){hint}"
                )
            low, high = (int(v) for v in values.aminmax()) if len(values) else (0, 0)
            if not 0 <= low <= high <= most:
                raise ValueError(f"{subject}: {field} is {low} to {high}; it should be 0 to {most}")
    if dataset.scale[0] or dataset.scale[1]:
        _check_scale(subject, dataset)
    if dataset.kind is TOKENS:
        _check_tokens(subject, dataset)
        return
    if not len(dataset.mean) == len(dataset.std) == shape[0]:
        raise ValueError(
            f"{subject}: mean and std have {len(dataset.mean)} and {len(dataset.std)} numbers; "
            f"it should be one for each of {shape[0]} channels or columns"
        )


def _check_scale(subject: str, dataset: Dataset) -> None:
    """Raise ``ValueError``, one line, unless ``scale`` has mean and deviation of each number."""
    finite = all(math.isfinite(value) for values in dataset.scale for value in values)
    sizes = [len(values) for values in dataset.scale]
    if dataset.objective != "number" or sizes != [dataset.num_classes] * 2 or not finite:
        raise ValueError(
            f"{subject}: scale = {dataset.scale}; numbers to learn have a finite mean and standard "
            f"deviation each, {dataset.num_classes} of both"
        )
    if min(dataset.scale[1]) <= 0:
        raise ValueError(f"{subject}: scale = {dataset.scale}; standard deviations are above 0")


def _check_tokens(subject: str, dataset: Dataset) -> None:
    """Raise ``ValueError``, one line, unless texts are tokens of the vocabulary, padded behind."""
    for side, x in (("x", dataset.x), ("x_test", dataset.x_test)):
        if not len(x):
            continue
        low, high = (int(v) for v in x.aminmax())
        if not 0 <= low <= high < dataset.vocab:
            raise ValueError(
                f"{subject}: {side} is {low} to {high}; tokens are 0 to vocab - 1, and vocab = "
                f"{dataset.vocab}"
            )
        check_padding(f"{subject}: {side}", x.numpy())


def check_padding(where: str, x: np.ndarray) -> None:
    """Raise ``ValueError``, one line, unless texts x (n, T) have tokens and padding behind them."""
    held = x > 0
    wrong = ~held[:, 0] | (held[:, 1:] & ~held[:, :-1]).any(1)
    check_rows(where, x, wrong, "a text has at least one token, and padding, 0, only behind it")


def check_rows(where: str, values: np.ndarray, wrong: np.ndarray, rule: str) -> None:
    """Raise ``ValueError``, one line with the ``rule``, if one of the rows (n,) is ``wrong``."""
    if wrong.any():
        row = int(wrong.argmax())
        shown, more = values[row, :8].tolist(), "…" * (values.shape[1] > 8)
        raise ValueError(f"{where} of sample {row} is {shown}{more}; {rule}")


def _check_next(where: str, y: Tensor, x: Tensor, dataset: Dataset) -> None:
    """Raise ``ValueError``, one line, unless ``y`` has the next tokens of the texts ``x``."""
    if dataset.kind is not TOKENS or y.dtype != torch.int32 or y.shape != x.shape:
        raise ValueError(
            f"{where} is {_describe(y)}, x {_describe(x)}; next tokens are int32 as texts"
        )
    if not dataset.num_classes == len(dataset.token_bytes) == dataset.vocab:
        raise ValueError(
            f"{where}: {dataset.num_classes} classes and {len(dataset.token_bytes)} token_bytes; "
            f"next tokens have one of each for all {dataset.vocab} tokens of the vocabulary"
        )
    padding, *others = dataset.token_bytes
    if padding != 0 or min(others, default=0) < 0 or not any(others):
        raise ValueError(
            f"{where}: token_bytes are {dataset.token_bytes[:8]}…; they are the lengths of the "
            "tokens in bytes, 0 for padding, and not 0 for all others"
        )
    wrong = ((y < 0) | (y >= dataset.vocab) | ((y > 0) & (x == 0))).any(1) | ~(y > 0).any(1)
    rule = f"it has at least one token to learn, of 1 to {dataset.vocab - 1}, and 0 for none, as "
    check_rows(where, y.numpy(), wrong.numpy(), f"{rule}behind the text")


def _check_values(where: str, y: Tensor, shape: tuple[int, int], dataset: Dataset) -> None:
    """Raise ``ValueError``, one line, unless ``y`` has labels or numbers of this shape."""
    if y.dtype != torch.float32 or y.shape != shape:
        raise ValueError(f"{where} is {_describe(y)}; it should be float32 {shape}")
    if dataset.objective == "labels":
        wrong = (y != 0) & (y != 1)
        check_rows(where, y.numpy(), wrong.any(1).numpy(), "labels are 0 or 1")
    check_rows(where, y.numpy(), ~torch.isfinite(y).all(1).numpy(), "one is not finite")


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def check_shares(name: str, shares: object, samples: int, clients: int) -> None:
    """Raise ``ValueError``, one line, unless ``shares`` has a valid share for every client."""
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
