"""Data sets in memory: samples, labels, and the statistics for normalisation.

Complete data sets fit in memory as uint8, so there is no streaming: a client's share is a gather
of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.data import kinds
from common.data.account import Account, ignored, unpacked
from common.data.kinds import IMAGE, TOKENS, Kind, OfKind, Shape
from common.measures import ObjectiveName, RegressionLoss
from common.objectives import OBJECTIVES, Answers, Objective
from common.seeds import rng

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue for grey (ITU-R BT.601)."""
MOST_CLASSES = 100_000
"""Most classes of a data set in files; a head for more is larger than the networks here."""
NOTHING = Account()  #: account of a data set that is not read from a user's files
CHUNK = 4096  #: images converted to floating point at a time; bounds memory, not results


@final
@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task.

    ``x`` and ``x_test`` are uint8 or float32 images (N, C, H, W), float32 signals (N, C, T),
    float32 tables (N, F), or int32 tokens (N, T) of a vocabulary of ``vocab``, of which 0 is the
    padding on the right. Floats are never divided by 255. ``objective`` says what ``y`` and
    ``y_test`` are: int64 (N,) in 0..num_classes - 1; labels as float32 (N, L) of 0 and 1; numbers
    as float32 (N, D) in their unit; next tokens as int32 (N, T), 0 where there is none to learn.
    ``classes`` names the classes, the labels, the targets or the tokens. ``mean`` and ``std`` are
    per channel (per column of a table), for bytes in units of [0, 1]; tokens have none.
    ``x_public`` contains samples that the data set reserves besides training and testing
    (CINIC-10's ``valid``), and ``y_public`` their classes, which only upper bounds use; usually
    both are None.

    ``owner`` (N,) and ``owner_test`` (N_test,) are the samples' owners, int64 in 0..owners - 1.
    Both are None for data without owners; ``owner_test`` alone is None if test samples have none.
    With partition ``natural`` client k is owner k. ``account`` says what a reader read.
    """

    name: str
    classes: tuple[str, ...]
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    x_public: Tensor | None = None
    y_public: Tensor | None = None
    owner: Tensor | None = None
    owner_test: Tensor | None = None
    account: Account = NOTHING
    declared: str = ""  #: name of the samples' kind; empty: the one of their number of axes
    vocab: int = 0  #: number of different tokens, padding included; 0: samples are no texts
    tokenizer: str = ""  #: tokenizer of the texts and digest of its vocabulary
    token_bytes: tuple[int, ...] = ()  #: length of each token in bytes; only of next tokens
    objective: ObjectiveName = "classes"
    scale: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Mean and standard deviation of each number over the training samples; else empty."""

    def counts(self, y: Tensor) -> list[int]:
        """Return how many of the samples y [n, ...] have each class or label, [C].

        All samples count for every number and every token.
        """
        if not OBJECTIVES[self.objective].has_counts:
            return [len(y)] * self.num_classes
        held = y.sum(0).long() if y.ndim == 2 else torch.bincount(y, minlength=self.num_classes)
        counts: list[int] = held.tolist()
        return counts

    def goal(self, how: RegressionLoss = "mse", *, prompts: bool = False) -> Objective:
        """Return the objective for these outputs.

        ``how``: the loss of numbers. ``prompts``: whether texts begin with what is not learnt.
        """
        if prompts:
            return Answers(self.classes, self.token_bytes)
        further = {"number": (*self.scale, how), "next-token": (self.token_bytes,)}
        return OBJECTIVES[self.objective](self.classes, *further.get(self.objective, ()))

    @property
    def shape(self) -> Shape:
        """Shape of one sample: (C, H, W), (C, T), (F,) or (T,), with its kind and vocabulary."""
        every = OBJECTIVES[self.objective].every
        return OfKind(self.x.shape[1:], self.kind, self.vocab, every)

    @property
    def kind(self) -> Kind:
        """Kind of the samples: as declared, else by their number type and axes."""
        return kinds.of_samples(self.x, self.declared)

    @property
    def num_classes(self) -> int:
        """Number of outputs of a network: classes, labels or targets."""
        return len(self.classes)

    @property
    def owners(self) -> int:
        """Number of owners; 0 for data without owners."""
        owners = [o for o in (self.owner, self.owner_test) if o is not None and len(o)]
        return max((int(o.max()) + 1 for o in owners), default=0)

    def trained_on(self, rows: Tensor) -> Dataset:
        """Return a copy with only ``rows`` of the training samples."""
        owner = None if self.owner is None else self.owner[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], owner=owner)

    def tested_on(self, rows: Tensor) -> Dataset:
        """Return a copy with only ``rows`` of the test samples."""
        owner = None if self.owner_test is None else self.owner_test[rows]
        return replace(self, x_test=self.x_test[rows], y_test=self.y_test[rows], owner_test=owner)


def measured(name: str, classes: tuple[str, ...], **tensors: Tensor) -> Dataset:
    """Return a data set of ``tensors`` (by field name) with mean and std computed from ``x``."""
    mean, std = channel_statistics(tensors["x"])
    fields: dict[str, Any] = dict(tensors)
    return Dataset(name, classes, mean=mean, std=std, **fields)


def of_files(
    root: Path,
    tensors: Mapping[str, Tensor],
    read: Iterable[str | Path],
    objective: ObjectiveName = "classes",
    **changes: Any,
) -> Dataset:
    """Return the data set that a reader decoded from files in ``root``, whose name it gets.

    ``tensors``: by field name, and the packed account. Without test samples, 20 % of each class
    are for testing. ``read``: the files that the reader knows; the account counts the others.
    ``changes``: fields of the account that are not decoded with the samples.
    """
    fields = dict(tensors)
    account = replace(unpacked(fields.pop("account")), ignored=ignored(root, read), **changes)
    if "x_test" not in fields:
        fields = halved(fields, "folder")
    dataset = measured(root.name, account.classes, **fields)
    return replace(dataset, account=account, objective=objective)


def fields_of(
    sides: Iterable[Sequence[np.ndarray]], owners: int, where: object, hint: str = ""
) -> dict[str, Tensor]:
    """Return x, y and owner of the samples for training and for testing by their field names.

    ``owners``: number of owners with training samples; 0: samples have none. There are no owners of
    test samples if one of them has no training samples. Raises ``ValueError``, one line that begins
    with ``where`` and ends with ``hint``, without samples for training or for testing.
    """
    fields: dict[str, Tensor] = {}
    for suffix, (x, y, owner) in zip(("", "_test"), sides, strict=True):
        if not len(y):
            what = "testing" if suffix else "training"
            raise ValueError(f"{where}: no samples for {what}{hint}")
        arrays = {"x": x, "y": y} | ({"owner": owner} if owner.max() < owners else {})
        fields |= {f"{name}{suffix}": torch.from_numpy(array) for name, array in arrays.items()}
    return fields


def halved(tensors: Mapping[str, Tensor], stream: str) -> dict[str, Tensor]:
    """Split ``tensors`` into 80 % of each class for training and 20 % for testing, fixed."""
    train, test = holdout(strata(tensors["y"]), 0.2, rng(0, stream))
    return {
        f"{name}{suffix}": tensor[rows]
        for name, tensor in tensors.items()
        for suffix, rows in (("", train), ("_test", test))
    }


@lru_cache(maxsize=4)
def merged(dataset: Dataset) -> Dataset:
    """Append the test samples to the training samples, so that no test samples remain.

    ``mean`` and ``std`` do not change. Owners are dropped if one of the two parts has none.
    """
    none = torch.empty(0, dtype=torch.int64)
    owner, owner_test = dataset.owner, dataset.owner_test
    return replace(
        dataset.tested_on(none),
        x=torch.cat([dataset.x, dataset.x_test]),
        y=torch.cat([dataset.y, dataset.y_test]),
        owner=None if owner is None or owner_test is None else torch.cat([owner, owner_test]),
    )


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and population standard deviation per channel, over samples and positions.

    ``x`` is (N, C, ...); bytes count in units of [0, 1]. A constant channel has the standard
    deviation 1. Tokens have neither.
    """
    if kinds.of_samples(x) is TOKENS:
        return (), ()
    if x.dtype == torch.uint8:  # a histogram is exact and needs one pass
        levels = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.stack(
            [torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
        )
        weights = counts.double() / (x.numel() / x.shape[1])
        mean = weights @ levels
        variance = (weights * (levels - mean[:, None]).square()).sum(1)
    else:
        mean = x.double().mean(kinds.positions(x))
        variance = x.double().var(kinds.positions(x), correction=0)
    std = torch.where(variance > 1e-12, variance.sqrt(), torch.ones_like(variance))
    return tuple(mean.tolist()), tuple(std.tolist())


def resize(x: Tensor, size: int) -> Tensor:
    """Resize bytes (N, C, H, W) to (N, C, size, size), bilinear, antialiased when shrinking."""
    if x.dtype != torch.uint8:
        raise ValueError(
            "data.image-size is for images of bytes: floats, signals, tables and texts cannot be "
            "resized"
        )
    if x.shape[-2:] == (size, size):
        return x
    return converted(x, (x.shape[1], size, size), lambda images: interpolated(images, (size, size)))


def fitted(x: Tensor, shape: Shape, what: str) -> Tensor:
    """Convert images x uint8 (N, c, h, w) to uint8 (N, C, H, W) of ``shape``.

    Colour becomes grey by ``LUMA``; grey becomes colour with three equal channels. Resizing is
    bilinear, antialiased when shrinking. Samples of that shape are returned unchanged.

    Raises a one-line ``ValueError`` that starts with ``what`` for samples that are not images of
    bytes, and for a number of channels that cannot be converted.
    """
    if tuple(x.shape[1:]) == shape:
        return x
    channels, target = x.shape[1], shape[0]
    images = kinds.of(shape) is IMAGE and x.dtype == torch.uint8
    if not images or (channels != target and {channels, target} != {1, 3}):
        raise ValueError(
            f"{what} has {str(x.dtype).removeprefix('torch.')} samples {tuple(x.shape[1:])}, the "
            f"data set {shape}; grey and colour images (1 or 3 channels of bytes) can be fitted"
        )

    _, *size = shape

    def convert(images: Tensor) -> Tensor:
        if channels > target:
            images = (images * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        if list(images.shape[-2:]) != size:
            images = interpolated(images, size)
        return images.expand(-1, target, -1, -1)

    return converted(x, shape, convert)


def interpolated(images: Tensor, size: Sequence[int]) -> Tensor:
    """Resize floats (n, C, H, W) to ``size``, bilinear, antialiased when shrinking."""
    return F.interpolate(images, list(size), mode="bilinear", align_corners=False, antialias=True)


def converted(x: Tensor, shape: Shape, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """Convert bytes (N, ...) to bytes (N, *shape) by way of floats, ``CHUNK`` images at a time."""
    out = torch.empty((len(x), *shape), dtype=torch.uint8)
    for into, images in zip(out.split(CHUNK), x.split(CHUNK), strict=True):
        into[:] = convert(images.float()).round().clamp(0, 255)
    return out


def strata(y: Tensor) -> Tensor:
    """Return the classes y (N,); of labels and numbers y (N, ...), one stratum for all samples."""
    return y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)


def stratified(y: Tensor, samples: int, draw: np.random.Generator) -> Tensor:
    """Draw ``samples`` rows with the class shares of ``y``; return sorted indices.

    Shares are rounded by largest remainder, and every class keeps at least one sample.
    """
    labels = y.numpy()
    present, counts = np.unique(labels, return_counts=True)
    if samples < len(present):
        raise ValueError(
            f"{samples} samples cannot hold {len(present)} classes: take at least {len(present)}"
        )
    if samples > len(labels):
        raise ValueError(f"{samples} samples requested, but there are only {len(labels)}")
    exact = counts * (samples / len(labels))
    take = np.maximum(np.floor(exact).astype(np.int64), 1)
    for _ in range(samples - int(take.sum())):
        take[np.argmax(exact - take)] += 1
    for _ in range(int(take.sum()) - samples):
        take[np.argmax(np.where(take > 1, take - exact, -np.inf))] -= 1
    rows = [np.flatnonzero(labels == c) for c in present]
    chosen = [draw.permutation(of_class)[:n] for of_class, n in zip(rows, take, strict=True)]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


def holdout(y: Tensor, fraction: float, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return sorted (train, test) indices; the test part has ``fraction`` of every class, rounded.

    A class with two or more samples has at least one in each part; a single sample is for training.
    """
    labels = y.numpy()
    test: list[np.ndarray] = []
    for c in np.unique(labels):
        of_class = draw.permutation(np.flatnonzero(labels == c))
        n = min(max(round(fraction * len(of_class)), 1), len(of_class) - 1)
        test.append(of_class[:n])
    mask = np.zeros(len(labels), dtype=bool)
    mask[np.concatenate(test)] = True
    return torch.from_numpy(np.flatnonzero(~mask)), torch.from_numpy(np.flatnonzero(mask))


def check_classes(label: float, where: str) -> None:
    """Raise ``ValueError`` for a label beyond ``MOST_CLASSES``; ``where``: the file it is in."""
    if label >= MOST_CLASSES:
        raise ValueError(
            f"{where}: label {label:.0f} is not allowed; a data set has at most {MOST_CLASSES} "
            f"classes, 0 to {MOST_CLASSES - 1}"
        )


def image_digests(x: Tensor) -> list[bytes]:
    """Return a digest of each sample of x (N, C, ...), for comparisons between data sets.

    Floats that are bytes, or bytes divided by 255, have the digests of these bytes.
    """
    digests: list[bytes] = []
    for images in x.flatten(1).split(CHUNK):
        rows = images.numpy()
        exact = np.zeros(len(rows), bool)
        if images.dtype != torch.uint8:
            levels = np.zeros(rows.shape, np.uint8)
            for scale in (1, 255):
                scaled = rows * np.float32(scale)
                rounded = scaled.round()
                near = (np.abs(scaled - rounded) < 1e-3) & (rounded >= 0) & (rounded <= 255)
                exact |= (of_scale := near.all(1))
                levels[of_scale] = rounded[of_scale]
            rows = rows + np.float32(0)  # -0.0 equals 0.0
        for i, row in enumerate(rows):
            content = levels[i] if exact[i] else row
            digests.append(hashlib.blake2b(content.tobytes(), digest_size=16).digest())
    return digests


def fingerprint(x: Tensor) -> str:
    """Return the sha256 (hex) of the shape, dtype and bytes of a tensor."""
    digest = hashlib.sha256(f"{tuple(x.shape)} {x.dtype}".encode())
    digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
