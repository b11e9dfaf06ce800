"""Algebra on state dicts: the vectors that federated averaging adds and scales.

Floating-point entries are numbers; integer ones (BatchNorm's ``num_batches_tracked``) are counters,
for which a mean means nothing: the largest is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from common.records import StateDict


def snapshot(module: nn.Module) -> StateDict:
    """A copy of a module's parameters and buffers on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def mean(states: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """Σ_i weights_i · states_i / Σ_i weights_i, entry by entry, in the order given.

    Sums run in float64 and are rounded once, so equal states average to themselves bit for bit.
    ``states`` is gone through once, so that models on disk need not be in memory together.

    Raises ``ValueError`` if there is nothing to average or the weights do not sum to more than 0.
    """
    total = float(sum(weights))
    if not weights or not total > 0:
        raise ValueError(f"cannot average {len(weights)} states with weights {list(weights)}")
    sums: StateDict = {}
    dtypes: dict[str, torch.dtype] = {}
    for state, weight in zip(states, weights, strict=True):
        for name in dtypes or state:
            value = state[name]
            if name not in sums:
                dtypes[name], counts = value.dtype, not value.is_floating_point()
                sums[name] = value if counts else torch.zeros_like(value, dtype=torch.float64)
            if value.is_floating_point():
                sums[name].add_(value.to(torch.float64), alpha=float(weight) / total)
            else:
                sums[name] = torch.maximum(sums[name], value)
    return {name: sum_.to(dtypes[name]) for name, sum_ in sums.items()}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> StateDict:
    """a − b on floating-point entries; integer entries of a."""
    return {k: v - b[k] if v.is_floating_point() else v for k, v in a.items()}


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
        if got.is_floating_point() and not bool(torch.isfinite(got).all()):
            raise ValueError(f"{what}: {name!r} has values that are not finite")
        if name.endswith("running_var") and bool((got < 0).any()):
            raise ValueError(f"{what}: {name!r} has negative variances")


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
