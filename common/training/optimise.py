"""Optimisers by the names and options of the configuration."""

import inspect
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn, optim
from torch.optim.optimizer import ParamsT

from common.errors import first_line
from common.exchange.records import StateDict
from common.files import parse_toml
from common.settings.options import Descent
from common.settings.plugins import nearest
from common.settings.section import Value

UNFIT = ("LBFGS", "Muon", "SparseAdam")
"""torch optimisers that need a closure, matrices as weights, or sparse gradients."""
KINDS: dict[str, type[optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if inspect.isclass(kind) and issubclass(kind, optim.Optimizer)
    if kind is not optim.Optimizer and name not in UNFIT
}
"""Optimisers that can train any network, by name in lower case."""
FUSED = (optim.SGD, optim.Adam, optim.AdamW)
"""Optimisers that torch implements as one kernel for all parameters, on every device."""


def make(
    parameters: ParamsT,
    kind: str,
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    options: str = "",
) -> optim.Optimizer:
    """Return the optimiser ``kind``, a key of ``KINDS``; fused where torch supports it.

    ``parameters``: parameters, or groups with their own learning rates. ``momentum``: for SGD only.
    ``options``: further arguments, in the form of ``Descent.optimizer_options``.
    """
    cls = KINDS[kind.lower()]
    arguments: dict[str, Any] = {"lr": lr}
    if cls is optim.SGD:
        arguments["momentum"] = momentum
    if "weight_decay" in inspect.signature(cls).parameters:
        arguments["weight_decay"] = weight_decay
    if cls in FUSED:
        arguments["fused"] = True
    return cls(parameters, **{**arguments, **_read(options)})


def of(parameters: ParamsT, o: Descent, t: int, rounds: int) -> torch.optim.Optimizer:
    """Return the optimiser that a settings table describes, for round t of ``rounds``."""
    return make(
        parameters,
        o.optimizer,
        o.lr_at(t, rounds),
        momentum=o.momentum,
        weight_decay=o.weight_decay,
        options=o.optimizer_options,
    )


def effective(steps: int, momentum: float) -> float:
    """Return the length of ``steps`` SGD steps on a constant gradient, in units of the rate lr.

    (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ), τ steps, momentum ρ in [0, 1): Wang et al. 2020, FedNova.
    """
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def is_sgd(o: Descent) -> bool:
    """Return whether a table names SGD, the optimiser that uses ``o.momentum``."""
    return KINDS[o.optimizer.lower()] is optim.SGD


def check(table: str, o: Descent) -> None:
    """Raise a one-line ``ValueError`` unless ``make`` accepts the settings of a table."""
    if o.optimizer.lower() not in KINDS:
        hint = nearest(o.optimizer.lower(), KINDS) or f"; allowed: {', '.join(KINDS)}"
        raise ValueError(f"{table}.optimizer = {o.optimizer!r} is unknown{hint}")
    cls = KINDS[o.optimizer.lower()]
    takes = set(inspect.signature(cls).parameters)
    if o.weight_decay and "weight_decay" not in takes:
        raise ValueError(f"{table}.weight-decay = {o.weight_decay:g}: {cls.__name__} has none")
    if not o.optimizer_options:
        return
    try:
        options = _read(o.optimizer_options)
        own = {"lr", "weight_decay", *(["momentum"] if is_sgd(o) else [])}
        free = sorted(takes - own - {"params"})
        for name in options:
            if name in own:
                raise ValueError(f"{table}.{name.replace('_', '-')} is a setting of its own")
            if name not in free:
                hint = nearest(name, free) or f"; allowed: {', '.join(free)}"
                raise ValueError(f"{cls.__name__} has no {name!r}{hint}")
        of([nn.Parameter(torch.zeros(1))], o, 1, 1)
    except (TypeError, ValueError, RuntimeError) as error:
        shown = f'{table}.optimizer-options = "{o.optimizer_options}"'
        raise ValueError(f"{shown} is not allowed: {first_line(error)}") from None


def _read(options: str) -> dict[str, Value | tuple[Value, ...]]:
    """Return the arguments in a text. Raises ``ValueError`` if the text is not TOML."""
    try:
        parsed = parse_toml(f"options = {{{options}}}")
    except ValueError as error:
        raise ValueError(f"it is not like alpha = 0.9, eps = 1e-6 ({error})") from None
    named = parsed["options"].items()
    return {name: tuple(v) if isinstance(v, list) else v for name, v in named}


@final
@dataclass
class Moments:
    """State of an optimiser that several trainings share, by parameter index."""

    state: dict[int, StateDict] = field(default_factory=dict)  #: empty before the first training


def moments(optimizer: torch.optim.Optimizer) -> dict[int, StateDict]:
    """Return an optimiser's state by parameter index, such as Adam's moments and step count."""
    state: dict[int, StateDict] = optimizer.state_dict()["state"]
    return {
        i: {name: v.detach().cpu().clone() for name, v in s.items() if v is not None}
        for i, s in state.items()
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, state: dict[int, StateDict]
) -> torch.optim.Optimizer:
    """Load a state from ``moments`` into an optimiser of the same parameters, and return it.

    A moment gets its parameter's memory format, because fused kernels walk both in memory order.
    """
    groups = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def like(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(p, dtype=v.dtype).copy_(v) if v.shape == p.shape else v.clone()

    laid = {i: {n: like(parameters[i].detach(), v) for n, v in s.items()} for i, s in state.items()}
    optimizer.load_state_dict({"state": laid, "param_groups": groups})
    return optimizer
