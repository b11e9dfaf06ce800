"""A data set in memory: images as bytes, labels, and the statistics that normalise them.

Whole data sets fit in memory as uint8, so nothing here streams: a client's share is a gather of
rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.training.seeds import rng

LUMA = (0.299, 0.587, 0.114)
"""Red, green and blue in grey (ITU-R BT.601)."""
CHUNK = 4096  #: images converted to floating point at a time; bounds memory, not results


@final
@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test samples of one task.

    ``x`` and ``x_test`` are uint8 (N, C, H, W) images, or float32 (N, C, H, W) points, which are
    never divided by 255; ``y`` and ``y_test`` are int64 (N,) in 0..num_classes - 1. ``mean`` and
    ``std`` are per channel in units of [0, 1] (of the points themselves for float32).
    ``x_public`` holds images that the data set itself sets apart from training and testing
    (CINIC-10's ``valid``) and ``y_public`` their classes, which only upper bounds look at; None for
    most.

    ``owner`` (N,) and ``owner_test`` (N_test,) are int64 in 0..owners - 1 and say whose each sample
    is, where samples come from somebody; ``owner_test`` alone may be None, which is a test that is
    nobody's own. With partition ``natural`` client k is owner k.
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

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one sample."""
        _, c, h, w = self.x.shape
        return c, h, w

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def owners(self) -> int:
        """How many the samples belong to; 0 where nothing is said."""
        told = [each for each in (self.owner, self.owner_test) if each is not None and len(each)]
        return max((int(each.max()) + 1 for each in told), default=0)

    def trained_on(self, rows: Tensor) -> Dataset:
        """The same with no other training samples than ``rows``."""
        owner = None if self.owner is None else self.owner[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], owner=owner)

    def tested_on(self, rows: Tensor) -> Dataset:
        """The same with no other test samples than ``rows``."""
        owner = None if self.owner_test is None else self.owner_test[rows]
        return replace(self, x_test=self.x_test[rows], y_test=self.y_test[rows], owner_test=owner)


def measured(name: str, classes: tuple[str, ...], **tensors: Tensor) -> Dataset:
    """The data set of these tensors, by the names of its fields, with the statistics of ``x``."""
    mean, std = channel_statistics(tensors["x"])
    return Dataset(name, classes, mean=mean, std=std, **tensors)


def halved(tensors: Mapping[str, Tensor], stream: str) -> dict[str, Tensor]:
    """Samples of which 80 % of each class train and 20 % are for testing, always the same."""
    train, test = holdout(tensors["y"], 0.2, rng(0, stream))
    return {
        f"{name}{suffix}": tensor[rows]
        for name, tensor in tensors.items()
        for suffix, rows in (("", train), ("_test", test))
    }


@lru_cache(maxsize=4)
def merged(dataset: Dataset) -> Dataset:
    """Training samples followed by test samples, all for training; none are left for testing.

    ``mean`` and ``std`` stay as they are. Samples whose owner is known for one part only have none.
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
    """Mean and population standard deviation per channel, over samples and pixels.

    ``x`` is (N, C, H, W); bytes are taken in units of [0, 1]. A constant channel gets the
    standard deviation 1.
    """
    if x.dtype == torch.uint8:  # a histogram is exact and reads every byte once
        levels = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.stack(
            [torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
        )
        weights = counts.double() / (x.numel() / x.shape[1])
        mean = weights @ levels
        variance = (weights * (levels - mean[:, None]).square()).sum(1)
    else:
        mean = x.double().mean((0, 2, 3))
        variance = x.double().var((0, 2, 3), correction=0)
    std = torch.where(variance > 1e-12, variance.sqrt(), torch.ones_like(variance))
    return tuple(mean.tolist()), tuple(std.tolist())


def resize(x: Tensor, size: int) -> Tensor:
    """(N, C, H, W) bytes to (N, C, size, size), bilinear, antialiased when shrinking."""
    if x.dtype != torch.uint8:
        raise ValueError(
            "data.image-size is for images of bytes: floats and points cannot be resized"
        )
    if x.shape[-2:] == (size, size):
        return x
    return converted(x, (x.shape[1], size, size), lambda images: interpolated(images, (size, size)))


def fitted(x: Tensor, shape: tuple[int, int, int], what: str) -> Tensor:
    """Images x uint8 (N, c, h, w) as uint8 (N, C, H, W) of ``shape``.

    Colour becomes grey by ``LUMA``, grey becomes colour by three equal channels; then bilinear,
    antialiased when shrinking. Images that fit are left as they are.

    Raises a one-line ``ValueError`` that begins with ``what``: points, or channels that are neither
    grey nor colour and not those of the task.
    """
    if tuple(x.shape[1:]) == shape:
        return x
    has, wants = x.shape[1], shape[0]
    if x.dtype != torch.uint8 or (has != wants and {has, wants} != {1, 3}):
        raise ValueError(
            f"{what} has {str(x.dtype).removeprefix('torch.')} samples {tuple(x.shape[1:])}, the "
            f"data set {shape}; grey and colour images (1 or 3 channels of bytes) can be fitted"
        )

    def convert(images: Tensor) -> Tensor:
        if has > wants:
            images = (images * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        if images.shape[-2:] != shape[1:]:
            images = interpolated(images, shape[1:])
        return images.expand(-1, wants, -1, -1)

    return converted(x, shape, convert)


def interpolated(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Floats (n, C, H, W) in another size, bilinear, antialiased when shrinking."""
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)


def converted(
    x: Tensor, shape: tuple[int, int, int], convert: Callable[[Tensor], Tensor]
) -> Tensor:
    """Convert bytes (N, ...) to bytes (N, *shape), as floats and ``CHUNK`` at a time."""
    out = torch.empty((len(x), *shape), dtype=torch.uint8)
    for into, images in zip(out.split(CHUNK), x.split(CHUNK), strict=True):
        into[:] = convert(images.float()).round().clamp(0, 255)
    return out


def stratified(y: Tensor, samples: int, draw: np.random.Generator) -> Tensor:
    """Sorted indices of ``samples`` rows in which every class keeps its share of ``y``.

    Shares are rounded by largest remainder and no class falls to nothing.
    """
    labels = y.numpy()
    present, counts = np.unique(labels, return_counts=True)
    if samples < len(present):
        raise ValueError(
            f"{samples} samples cannot hold {len(present)} classes: take at least {len(present)}"
        )
    if samples > len(labels):
        raise ValueError(f"{samples} samples asked for, but there are only {len(labels)}")
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
    """Sorted (train, test) indices; ``fraction`` of every class, rounded, goes to the test part.

    A class of two samples or more has both a train and a test sample; a single one trains.
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


def fingerprint(x: Tensor) -> str:
    """sha256 (hex) over the shape, dtype and bytes of a tensor: equal only for equal contents."""
    digest = hashlib.sha256(f"{tuple(x.shape)} {x.dtype}".encode())
    digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
