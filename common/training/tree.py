"""Algebra on state dicts: the vectors that federated averaging adds and scales.

Floating-point entries are numbers; integer ones (BatchNorm's ``num_batches_tracked``) are counters,
for which a mean means nothing: the largest is kept.

A smaller network's state dict may be part of a larger one's, its sub-model: two entries are the
same layer if they have the same name and shape; names count the blocks of a stage from its start,
so ``layer2.1.conv1`` of a ResNet-18 is that of a ResNet-26.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from common.exchange.records import StateDict

PIECE = 1 << 20  #: numbers of an entry that are looked at together


def snapshot(module: nn.Module) -> StateDict:
    """A copy of a module's parameters and buffers on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def mean(states: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """Σ_i weights_i · states_i / Σ_i weights_i, entry by entry, in the order given.

    Sums run in float64 and are rounded once, so equal states average to themselves bit for bit.
    States that are no sequence are gone through once, so that models on disk need not be in memory
    together; the sums of all entries are then.

    Raises ``ValueError`` if there is nothing to average or the weights do not sum to more than 0.
    """
    total = float(sum(weights))
    if not weights or not total > 0:
        raise ValueError(f"cannot average {len(weights)} states with weights {list(weights)}")
    shares = [float(weight) / total for weight in weights]
    if isinstance(states, Sequence):  # one entry after the other
        return {name: _mean([state[name] for state in states], shares) for name in states[0]}
    sums: dict[str, _Sum] = {}
    for state, share in zip(states, shares, strict=True):
        for name in sums or state:
            sums.setdefault(name, _Sum()).add(state[name], share)
    return {name: sums.pop(name).done() for name in list(sums)}


def _mean(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    if not all(value.is_contiguous() for value in values):
        return _sum(values, shares)
    found = torch.empty_like(values[0])
    for into, *parts in zip(*map(pieces, (found, *values)), strict=True):
        into.copy_(_sum(parts, shares))
    return found


def _sum(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    found = _Sum()
    for value, share in zip(values, shares, strict=True):
        found.add(value, share)
    return found.done()


@final
class _Sum:
    """Running weighted sum of one entry in float64; of an integer counter, the maximum."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def add(self, value: Tensor, share: float) -> None:
        if not value.is_floating_point():
            self.value = value if self.value is None else torch.maximum(self.value, value)
            return
        if self.value is None:
            self.dtype = value.dtype
            self.value = torch.zeros_like(value, dtype=torch.float64)
        self.value.add_(value, alpha=share)  # in float64, without a copy of ``value`` in it

    def done(self) -> Tensor:
        assert self.value is not None, "there is something to average"
        return self.value.to(self.dtype) if self.value.is_floating_point() else self.value


def numbers(state: Mapping[str, Tensor]) -> int:
    """How many numbers a state dict has."""
    return sum(value.numel() for value in state.values())


def parameters_only(module: nn.Module) -> frozenset[str]:
    """Names of the entries of a state dict that are parameters, not buffers."""
    return frozenset(name for name, _ in module.named_parameters())


def check_like(state: Mapping[str, Tensor], reference: Mapping[str, Tensor], what: str) -> None:
    """Raise a one-line ``ValueError`` unless keys, shapes and dtypes agree and all is finite."""
    if missing := sorted(reference.keys() - state.keys()):
        raise ValueError(f"{what} lacks {len(missing)} entries, first {missing[0]!r}")
    if extra := sorted(state.keys() - reference.keys()):
        raise ValueError(f"{what} has {len(extra)} unknown entries, first {extra[0][:80]!r}")
    for name, expected in reference.items():
        got = state[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise ValueError(
                f"{what}: {name!r} is {_describe(got)}, expected {_describe(expected)}"
            )
        if not finite(got):
            raise ValueError(f"{what}: {name!r} has values that are not finite")
        if name.endswith("running_var") and bool((got < 0).any()):
            raise ValueError(f"{what}: {name!r} has negative variances")


def pieces(tensor: Tensor) -> Iterable[Tensor]:
    """All numbers, flat, in pieces: what is computed of a piece takes little memory."""
    yield from tensor.reshape(-1).split(PIECE)


def finite(tensor: Tensor) -> bool:
    """Whether it has no number that is infinite or none."""
    return not tensor.is_floating_point() or all(
        bool(torch.isfinite(piece).all()) for piece in pieces(tensor)
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def cut(whole: Mapping[str, Tensor], names: Iterable[str]) -> StateDict:
    """The entries of ``whole`` under ``names``, in their order; no copies."""
    return {name: whole[name] for name in names}


def difference(part: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> str:
    """The first layer of ``part`` that ``whole`` does not have; empty for a sub-model."""
    for name, value in part.items():
        if name not in whole:
            return f"{name!r} is not in it"
        if whole[name].shape != value.shape:
            return f"{name!r} is {list(value.shape)}, in it {list(whole[name].shape)}"
    return ""


def check_nested(states: Mapping[str, Mapping[str, Tensor]], across: str = "") -> str:
    """The architecture of which all the others are sub-models, by the name it has in ``states``.

    Raises ``ValueError``, one line, if there is none: who does not fit into the largest, and the
    ``average.across`` that asks for it.
    """
    found = max(states, key=lambda spec: numbers(states[spec]))
    for spec, state in states.items():
        if reason := difference(state, states[found]):
            raise ValueError(
                f'average.across = "{across}": {spec} is no sub-model of {found}, the largest of '
                f'all: {reason}; "same" takes any fleet'
            )
    return found


def steps(sent: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """``w`` - ``sent`` in float64, entry by entry, flat and in pieces of at most ``PIECE`` numbers,
    without BatchNorm's statistics; nothing if they are not of one network.
    """
    if sent.keys() != w.keys() or any(w[name].shape != x.shape for name, x in sent.items()):
        return
    for name, x in sent.items():
        if x.is_floating_point() and not name.endswith(("running_mean", "running_var")):
            both = zip(pieces(w[name]), pieces(x), strict=True)
            yield from ((name, new.double() - old.double()) for new, old in both)
