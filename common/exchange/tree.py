"""Algebra on state dicts: the vectors that federated averaging adds and scales.

Floating-point entries are averaged. Integer entries are counters (BatchNorm's
``num_batches_tracked``), which have no meaningful mean; the largest is kept.

A network is a sub-model of a larger one if the larger one has all its entries. Two entries are the
same layer if they have the same name and shape. Names count the blocks of a stage from its start,
so ``layer2.1.conv1`` is the same layer in a ResNet-18 and a ResNet-26.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from common import progress
from common.exchange.records import StateDict

PIECE = 1 << 20  #: numbers of an entry that are processed at once
STATISTICS = ("running_mean", "running_var")  #: ends of the names of BatchNorm's statistics


def snapshot(module: nn.Module) -> StateDict:
    """Return a copy of a module's parameters and buffers on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def mean(states: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """Return Σ_i weights_i · states_i / Σ_i weights_i, entry by entry, in the order of ``states``.

    Sums run in float64 and are rounded once, so the mean of equal states has the same bits. An
    iterator of states is read once, so that only one model on disk is in memory at a time, beside
    the sums of all entries.

    Raises ``ValueError`` if there are no states or the weights do not sum to more than 0.
    """
    total = float(sum(weights))
    if not weights or not total > 0:
        raise ValueError(f"cannot average {len(weights)} states with weights {list(weights)}")
    shares = [float(weight) / total for weight in weights]
    if isinstance(states, Sequence):  # one entry after the other
        names = progress.steps(states[0], "entry")
        return {name: _mean([state[name] for state in states], shares) for name in names}
    sums: dict[str, _Sum] = {}
    for state, share in zip(states, shares, strict=True):
        for name in sums or state:
            sums.setdefault(name, _Sum()).add(state[name], share)
    return {name: sums.pop(name).done() for name in list(sums)}


def _mean(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    if not all(value.is_contiguous() for value in values):
        return _sum(values, shares)
    result = torch.empty_like(values[0])
    for into, *terms in zip(*map(pieces, (result, *values)), strict=True):
        into.copy_(_sum(terms, shares))
    return result


def _sum(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = _Sum()
    for value, share in zip(values, shares, strict=True):
        total.add(value, share)
    return total.done()


@final
class _Sum:
    """Running weighted sum of one entry in float64, or maximum of an integer counter."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def add(self, value: Tensor, share: float) -> None:
        if not value.is_floating_point():
            self.value = value if self.value is None else torch.maximum(self.value, value)
            return
        if self.value is None:
            self.dtype = value.dtype
            self.value = torch.zeros_like(value, dtype=torch.float64)
        self.value.add_(value, alpha=share)  # in float64, without a float64 copy of ``value``

    def done(self) -> Tensor:
        assert self.value is not None, "there is something to average"
        return self.value.to(self.dtype) if self.value.is_floating_point() else self.value


def numbers(state: Mapping[str, Tensor]) -> int:
    """Return how many numbers a state dict has."""
    return sum(value.numel() for value in state.values())


def parameters_only(module: nn.Module) -> frozenset[str]:
    """Return the names of a module's parameters, without its buffers."""
    return frozenset(name for name, _ in module.named_parameters())


def check_like(state: Mapping[str, Tensor], reference: Mapping[str, Tensor], what: str) -> None:
    """Raise a one-line ``ValueError`` unless keys, shapes and dtypes match and all is finite."""
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
    """Yield flat pieces of a tensor, so that intermediate results take little memory."""
    yield from tensor.reshape(-1).split(PIECE)


def finite(tensor: Tensor) -> bool:
    """Return whether a tensor has neither infinities nor NaN."""
    return not tensor.is_floating_point() or all(
        bool(torch.isfinite(piece).all()) for piece in pieces(tensor)
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def cut(whole: Mapping[str, Tensor], names: Iterable[str]) -> StateDict:
    """Return the entries ``names`` of ``whole`` in the order of ``names``, not copied."""
    return {name: whole[name] for name in names}


def difference(small: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> str:
    """Return the first difference that makes ``small`` no sub-model of ``whole``; else empty."""
    for name, value in small.items():
        if name not in whole:
            return f"{name!r} is not in it"
        if whole[name].shape != value.shape:
            return f"{name!r} is {list(value.shape)}, in it {list(whole[name].shape)}"
    return ""


def check_nested(states: Mapping[str, Mapping[str, Tensor]], across: str = "") -> str:
    """Return the architecture, a key of ``states``, of which all the others are sub-models.

    Raises a one-line ``ValueError`` if there is none: it names the architecture that is no
    sub-model of the largest, and ``across``, the value of ``average.across``.
    """
    largest = max(states, key=lambda spec: numbers(states[spec]))
    for spec, state in states.items():
        if reason := difference(state, states[largest]):
            raise ValueError(
                f'average.across = "{across}": {spec} is no sub-model of {largest}, the largest of '
                f'all: {reason}; "same" takes any fleet'
            )
    return largest


def steps(sent: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield entries' names and ``w`` - ``sent`` in float64, flat, at most ``PIECE`` numbers each.

    BatchNorm's statistics are left out. State dicts of different networks yield nothing.
    """
    if sent.keys() != w.keys() or any(w[name].shape != x.shape for name, x in sent.items()):
        return
    for name, x in sent.items():
        if x.is_floating_point() and not name.endswith(STATISTICS):
            both = zip(pieces(w[name]), pieces(x), strict=True)
            yield from ((name, new.double() - old.double()) for new, old in both)
