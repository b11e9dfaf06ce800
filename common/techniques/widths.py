"""Blocks of a wide network: the part of every entry that a narrower network uses.

Of a layer with m output channels a narrower network has n. A ``Window`` says which: the first n, in
HeteroFL and wherever ``average.across = "width"``, or others (FedRolex). It depends on m, n and the
round alone. So layers that are added to each other have the same channels, and the inputs of a
layer are the outputs of the one before. What both networks have whole, such as the channels of the
images and the classes, stays in order. A linear layer behind flattened maps of H·W pixels has H·W
columns for each channel (C-major).

Diao, Ding, Tarokh, "HeteroFL", ICLR 2021, section 3.1; Alam et al., "FedRolex", NeurIPS 2022,
section 3.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from common import models
from common.exchange.records import StateDict
from common.training import seeds, tree

Window = Callable[[int, int], Tensor]
"""Function of m and n < m that returns n distinct channels of m, int64 [n]."""


@final
@dataclass(frozen=True)
class Roll:
    """(i − offset) mod m for i = 0 … n − 1; offset 0: the first n."""

    offset: int = 0

    def __call__(self, m: int, n: int) -> Tensor:
        return (torch.arange(n) - self.offset) % m


@final
@dataclass(frozen=True)
class Drawn:
    """Any n of m, ascending, as drawn for client k in round t."""

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
    """What a client takes of the widest network in a round."""

    spec: str  #: its architecture then
    window: Window = LEADING
    classes: tuple[int, ...] | None = None  #: whose rows of the head it trains; None: all


def block(
    whole: Mapping[str, Tensor], part: Mapping[str, Tensor], window: Window = LEADING
) -> dict[str, Places]:
    """Where the entries of ``part`` lie in ``whole``, of whose values only the shapes matter."""
    found: dict[str, Places] = {}
    before = (1, 1)  # channels of the layer before, in the whole and in the part
    for name, narrow in part.items():
        wide, own = whole[name].shape, narrow.shape
        axes = [_indices(m, n, 1, window) for m, n in zip(wide[:2], own[:2], strict=True)]
        pixels = wide[1] // before[0] if len(wide) == 2 else 1
        if pixels > 1 and (pixels * before[0], pixels * before[1]) == (wide[1], own[1]):
            axes[1] = _indices(*before, pixels, window)
        found[name] = () if wide == own else tuple(axes)
        before = (wide[0], own[0]) if own else before
    return found


def _indices(m: int, n: int, pixels: int, window: Window) -> Tensor:
    """The columns of n of m channels with so many pixels each."""
    channels = window(m, n) if n < m else torch.arange(m)
    return (channels[:, None] * pixels + torch.arange(pixels)).flatten()


def cut(whole: Mapping[str, Tensor], places: Mapping[str, Places]) -> StateDict:
    """The entries at these places; copies, except of those that are taken whole."""
    return {name: take(whole[name], axes) for name, axes in places.items()}


def take(value: Tensor, axes: Places) -> Tensor:
    """``value`` [m, m', …] at the crossings of the axes: [n, n', …]."""
    return value[grid(axes)] if axes else value


def grid(axes: Places) -> Places:
    """The same indices so that they cross each other: rows [n, 1] and columns [n']."""
    return (axes[0][:, None], axes[1]) if len(axes) == 2 else axes


def check_widths(states: Mapping[str, Mapping[str, Tensor]]) -> str:
    """The widest architecture of ``states``, of which all the others are blocks.

    Raises ``ValueError``, one line, naming one that is not: of another architecture, or of one
    whose narrower networks are no blocks of the wider ones.
    """
    widest = max(states, key=lambda spec: tree.numbers(states[spec]))
    key, name = 'average.across = "width"', models.parse(widest)[0]
    for spec in states:
        if models.parse(spec)[0] != name:
            raise ValueError(f"{key}: {spec} is no width of {name}, as in {name}@0.5")
    if not models.architecture(name).nests and len(states) > 1:
        raise ValueError(
            f"{key}: {name} cannot take part; the channels of a narrower one are not the first of "
            "a wider one's"
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
