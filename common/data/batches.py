"""Batches of tensors in memory, which are gathered, augmented and normalised on the device.

There is no DataLoader and no PIL: an epoch is one permutation and, per batch, one gather and a few
in-place operations. All random numbers of an epoch are drawn at once on the CPU from a generator
argument, so that every device computes the same batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common.data.kinds import TOKENS, of_samples, per_channel, positions


@final
@dataclass(frozen=True)
class Augment:
    """Augmentation: probability of a flip, padding of a crop, side of a cutout square."""

    flip: float = 0.0
    pad: int = 0
    cutout: int = 0


AUGMENTS: dict[str, Augment] = {
    "none": Augment(),
    "flip": Augment(flip=0.5),
    "flip-0.6": Augment(flip=0.6),  # FedORION, the released code
    "crop-flip": Augment(flip=0.5, pad=4),
    "cutout": Augment(flip=0.5, pad=4, cutout=16),  # InCo Aggregation on CIFAR
    "cutout-only": Augment(cutout=16),  # InCo Aggregation on SVHN
}


def check_augment(augment: str, x: Tensor) -> None:
    """Raise ``ValueError`` if samples x do not support the augmentation."""
    if augment != "none" and x.dtype != torch.uint8:
        raise ValueError(f"data.augment = {augment!r} is for images of bytes: floats take 'none'")


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (x / 255 − mean) / std per channel for bytes (n, C, ...); floats skip the / 255."""
    values = x.to(torch.float32, copy=True)
    if x.dtype == torch.uint8:
        values.div_(255)
    return values.sub_(per_channel(mean, values)).div_(per_channel(std, values))


def standardise(x: Tensor, mean: Sequence[float], std: Sequence[float], how: str) -> Tensor:
    """Normalise x (n, C, ...) to float32 with statistics of the data set or the batch (``how``).

    "batch" is FedORION's: mean and sample standard deviation per channel over the n samples. A
    deviation below 1e-6 counts as 1. Tokens stay as they are.
    """
    if of_samples(x) is TOKENS:
        return x
    if how == "dataset":
        return normalise(x, mean, std)
    values = normalise(x, (0.0,) * x.shape[1], (1.0,) * x.shape[1])
    if values.numel() == x.shape[1]:
        return values.zero_()
    deviation, centre = torch.std_mean(values, positions(values), keepdim=True)
    deviation = torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)
    return values.sub_(centre).div_(deviation)


@final
class Batches:
    """Training batches of one client; each iteration is one epoch in a new order.

    ``order``: rows (n,) for every epoch instead of a new order; no order is drawn then.

    Yields (float32 (b, C, ...) normalised, int64 (b,)) on ``device``. A last batch of one sample
    is omitted (BatchNorm would fail) unless it is the only one or ``batch_size`` is 1.
    ``drop_last`` omits every short last batch, but never the only one.
    Epochs draw from ``generator`` (CPU) in sequence: a new generator with the same seed repeats
    them.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str = "none",
        standardize: str = "dataset",
        generator: torch.Generator,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        order: Tensor | None = None,
    ) -> None:
        self._augment = AUGMENTS[augment]
        assert len(x) == len(y) > 0, "batches of no samples"
        assert generator.device.type == "cpu", "random numbers are drawn on the CPU"
        target = x.device if device is None else torch.device(device)
        self._x, self._y = x.to(target), y.to(target)
        self._mean, self._std = tuple(mean), tuple(std)
        self._standardize = standardize
        self._generator, self._order = generator, order
        self.batch_size = batch_size
        self.lengths = lengths(len(x), batch_size, drop_last)

    @property
    def samples(self) -> int:
        """Number of samples, including those of an omitted batch."""
        return len(self._y)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order
        if order is None:
            order = torch.randperm(self.samples, generator=self._generator)
        columns, rows, holes = self._draw()
        order, columns, rows, holes = (
            t.to(self._x.device, non_blocking=True) for t in (order, columns, rows, holes)
        )
        start = 0
        for n in self.lengths:
            batch = slice(start, start + n)
            chosen = order[batch]
            images = self._x[chosen]
            if self._augment.flip or self._augment.pad:
                images = crop(images, rows[batch], columns[batch], self._augment.pad)
            images = standardise(images, self._mean, self._std, self._standardize)
            if self._augment.cutout:
                cut_out(images, holes[batch], self._augment.cutout)
            yield images, self._y[chosen]
            start += n

    def take(self, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield exactly ``steps`` batches, over as many epochs as necessary."""
        return islice(chain.from_iterable(repeat(self)), steps)

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw source columns (N, W), source rows (N, H) and cutout centres (N, 2) of an epoch."""
        n, (h, w) = self.samples, self._x.shape[-2:]
        a, g = self._augment, self._generator
        rows = columns = holes = torch.empty(n, 0, dtype=torch.int64)
        if a.flip or a.pad:
            rows, columns = views(n, (h, w), a, g)
        if a.cutout:
            holes = torch.stack(
                [torch.randint(0, side, (n,), generator=g) for side in (h, w)], dim=1
            )
        return columns, rows, holes


def views(
    n: int, size: tuple[int, int], augment: Augment, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw the source rows (n, H) and columns (n, W) of n images (H, W) for ``crop``."""
    offset = torch.randint(0, 2 * augment.pad + 1, (n, 2), generator=generator)
    flip = torch.rand(n, 1, generator=generator) < augment.flip
    across = torch.arange(size[1])
    columns = offset[:, 1:] + torch.where(flip, across.flip(0), across)
    return offset[:, :1] + torch.arange(size[0]), columns


def crop(x: Tensor, rows: Tensor, columns: Tensor, pad: int) -> Tensor:
    """Set pixel (i, j) of image b to pixel (rows[b, i], columns[b, j]) of the image padded with 0.

    ``x`` (n, C, H, W), ``rows`` (n, h), ``columns`` (n, w); returns (n, C, h, w). Consecutive
    indices are a crop, descending indices a flip.
    """
    n, c = x.shape[:2]
    padded = F.pad(x, (pad,) * 4) if pad else x
    indices = rows[:, :, None] * padded.shape[-1] + columns[:, None, :]
    source = indices.view(n, 1, -1).expand(n, c, -1)
    out = padded.reshape(n, c, -1).gather(2, source)
    return out.view(n, c, rows.shape[1], columns.shape[1])


def cut_out(x: Tensor, centres: Tensor, side: int) -> None:
    """Set a square around each centre to zero, in place, clipped at the borders.

    The square has rows cy − side/2 .. cy + side/2 − 1, and columns likewise. It is applied after
    normalisation, so that it has the mean colour (DeVries and Taylor 2017, "Improved Regularization
    of CNNs with Cutout").
    """
    half = side // 2
    i = torch.arange(x.shape[2], device=x.device)
    j = torch.arange(x.shape[3], device=x.device)
    cy, cx = centres[:, :1], centres[:, 1:]
    tall = (i >= cy - half) & (i < cy + half)
    wide = (j >= cx - half) & (j < cx + half)
    x.masked_fill_((tall[:, :, None] & wide[:, None, :])[:, None], 0.0)


def lengths(n: int, size: int, drop_last: bool = False) -> tuple[int, ...]:
    """Return the sizes of the batches of an epoch over n samples."""
    full, rest = divmod(n, size)
    skip = full > 0 and (drop_last or rest == 1)
    return (size,) * full + ((rest,) if rest and not skip else ())
