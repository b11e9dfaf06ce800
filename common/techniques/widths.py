"""Blocks of a wide network: the part of every entry that a narrower network uses.

A narrower network has n of the m output channels of a layer. A ``Window`` selects them: the first n
in HeteroFL and under ``average.across = "width"``, others in FedRolex. It depends only on m, n and
the round. Layers whose outputs are added therefore have the same channels, and the inputs of a
layer are the outputs of the previous layer. Axes of equal length in both networks, such as image
channels and classes, stay in order. A linear layer after flattened maps of H·W pixels has H·W
columns for each channel (C-major).

Diao, Ding, Tarokh, "HeteroFL", ICLR 2021, section 3.1; Alam et al., "FedRolex", NeurIPS 2022,
section 3.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from common import models, seeds
from common.exchange import tree
from common.exchange.records import StateDict

Window = Callable[[int, int], Tensor]
"""Function of m and n < m that returns n distinct channels of m, int64 [n]."""


@final
@dataclass(frozen=True)
class Roll:
    """Window of the channels (i − offset) mod m for i = 0 … n − 1; offset 0: the first n."""

    offset: int = 0

    def __call__(self, m: int, n: int) -> Tensor:
        return (torch.arange(n) - self.offset) % m


@final
@dataclass(frozen=True)
class RandomWindow:
    """Window of n random channels, ascending, drawn for client k in round t."""

    seed: int
    k: int
    t: int

    def __call__(self, m: int, n: int) -> Tensor:
        generator = seeds.stream(self.seed, "window", self.k, self.t, m)
        return torch.randperm(m, generator=generator)[:n].sort().values


LEADING = Roll()

Places = tuple[Tensor, ...]
"""Indices along the first axes of an entry, at most two; empty: the whole entry."""


class Submodel(NamedTuple):
    """Part of the widest network that a client trains in a round."""

    spec: str  #: its architecture in this round
    window: Window = LEADING
    classes: tuple[int, ...] | None = None  #: classes whose rows of the head it trains; None: all


def block(
    whole: Mapping[str, Tensor], small: Mapping[str, Tensor], window: Window = LEADING
) -> dict[str, Places]:
    """Return the places of the entries of ``small`` in ``whole``; only shapes are used."""
    places: dict[str, Places] = {}
    before = (1, 1)  # channels of the previous layer, in ``whole`` and in ``small``
    for name, value in small.items():
        wide, narrow = whole[name].shape, value.shape
        axes = [_indices(m, n, 1, window) for m, n in zip(wide[:2], narrow[:2], strict=True)]
        pixels = wide[1] // before[0] if len(wide) == 2 else 1
        if pixels > 1 and (pixels * before[0], pixels * before[1]) == (wide[1], narrow[1]):
            axes[1] = _indices(*before, pixels, window)
        places[name] = () if wide == narrow else tuple(axes)
        before = (wide[0], narrow[0]) if narrow else before
    return places


def _indices(m: int, n: int, pixels: int, window: Window) -> Tensor:
    """Return the columns of n of m channels with ``pixels`` columns each."""
    channels = window(m, n) if n < m else torch.arange(m)
    return (channels[:, None] * pixels + torch.arange(pixels)).flatten()


def cut(whole: Mapping[str, Tensor], places: Mapping[str, Places]) -> StateDict:
    """Return the entries at these places, as copies except for whole entries."""
    return {name: take(whole[name], axes) for name, axes in places.items()}


def take(value: Tensor, axes: Places) -> Tensor:
    """Return ``value`` [m, m', …] at the indices of ``axes``: [n, n', …]."""
    return value[grid(axes)] if axes else value


def grid(axes: Places) -> Places:
    """Return the indices in a form that broadcasts: rows [n, 1] and columns [n']."""
    return (axes[0][:, None], axes[1]) if len(axes) == 2 else axes


def check_widths(states: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return the widest architecture of ``states``; all other networks must be blocks of it.

    Raises a one-line ``ValueError`` for a network of another architecture, and for an architecture
    whose narrower networks are not blocks of the wider ones.
    """
    widest = max(states, key=lambda spec: tree.numbers(states[spec]))
    key, base = 'average.across = "width"', models.frozen(widest)
    name = base or models.parse(widest)[0]
    for spec in states:
        if (models.frozen(spec) or models.parse(spec)[0]) != name:
            what, like = ("rank", models.with_rank(base, 4)) if base else ("width", f"{name}@0.5")
            raise ValueError(f"{key}: {spec} is no {what} of {name}, as in {like}")
    if not models.architecture(models.parse(widest)[0]).nests and len(states) > 1:
        raise ValueError(
            f"{key}: {name} cannot take part; the channels of a narrower network are not the first "
            "channels of a wider one"
        )
    for spec, state in states.items():
        for entry, value in state.items():
            wide = states[widest][entry].shape
            if any(n > m for n, m in zip(value.shape, wide, strict=True)):
                raise ValueError(
                    f"{key}: {spec} is no block of {widest}, the widest: {entry!r} is "
                    f"{list(value.shape)}, in it {list(wide)}"
                )
    return widest
