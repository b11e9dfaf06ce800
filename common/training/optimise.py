"""Optimisers as the configuration asks for them."""

import inspect
import tomllib
from typing import Any

import torch
from torch import nn, optim
from torch.optim.optimizer import ParamsT

from common.errors import first_line
from common.exchange.records import StateDict
from common.settings.options import Descent
from common.settings.plugins import nearest
from common.settings.section import Value

UNFIT = ("LBFGS", "Muon", "SparseAdam")
"""Optimisers of torch that need a closure, weights that are all matrices, sparse gradients."""
KINDS: dict[str, type[optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if inspect.isclass(kind) and issubclass(kind, optim.Optimizer)
    if kind is not optim.Optimizer and name not in UNFIT
}
"""Those that can train any network, by their names in small letters."""
FUSED = (optim.SGD, optim.Adam, optim.AdamW)
"""Those of which torch has a form with one kernel for all parameters, on every device."""


def make(
    parameters: ParamsT,
    kind: str,
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    options: str = "",
) -> optim.Optimizer:
    """The optimiser ``kind``, one of ``KINDS``; fused where it can be.

    ``parameters``: or groups of them, with learning rates of their own. ``momentum`` is SGD's;
    ``options``: further arguments, as ``Descent.optimizer_options``.
    """
    cls = KINDS[kind.lower()]
    given: dict[str, Any] = {"lr": lr}
    if cls is optim.SGD:
        given["momentum"] = momentum
    if "weight_decay" in inspect.signature(cls).parameters:
        given["weight_decay"] = weight_decay
    if cls in FUSED:
        given["fused"] = True
    return cls(parameters, **{**given, **_read(options)})


def of(parameters: ParamsT, o: Descent, t: int, rounds: int) -> torch.optim.Optimizer:
    """What a table asks for in round t of ``rounds``."""
    return make(
        parameters,
        o.optimizer,
        o.lr_at(t, rounds),
        momentum=o.momentum,
        weight_decay=o.weight_decay,
        options=o.optimizer_options,
    )


def effective(steps: int, momentum: float) -> float:
    """How many steps of size lr so many of SGD amount to on a constant gradient.

    (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ), τ steps, momentum ρ in [0, 1): Wang et al. 2020, FedNova.
    """
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def is_sgd(o: Descent) -> bool:
    """Whether a table asks for SGD, whose momentum is ``o.momentum``."""
    return KINDS[o.optimizer.lower()] is optim.SGD


def check(table: str, o: Descent) -> None:
    """Raise ``ValueError``, one line, unless ``make`` can make what the table asks for."""
    if o.optimizer.lower() not in KINDS:
        hint = nearest(o.optimizer.lower(), KINDS) or f"; allowed: {', '.join(KINDS)}"
        raise ValueError(f'{table}.optimizer = "{o.optimizer}" is unknown{hint}')
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
    """The arguments that a text names. Raises ``ValueError`` for one that is not TOML."""
    try:
        found = tomllib.loads(f"options = {{{options}}}")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not like alpha = 0.9, eps = 1e-6 ({error})") from None
    named = found["options"].items()
    return {name: tuple(v) if isinstance(v, list) else v for name, v in named}


def moments(optimizer: torch.optim.Optimizer) -> dict[int, StateDict]:
    """What an optimiser remembers, parameter by parameter: Adam's moments and its step."""
    state: dict[int, StateDict] = optimizer.state_dict()["state"]
    return {
        i: {name: v.detach().cpu().clone() for name, v in s.items() if v is not None}
        for i, s in state.items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, state: dict[int, StateDict]) -> None:
    """Inverse of ``moments``, for an optimiser of the same parameters.

    A moment gets its parameter's memory format: fused kernels go through both in memory order.
    """
    groups = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def like(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(p, dtype=v.dtype).copy_(v) if v.shape == p.shape else v.clone()

    own = {i: {n: like(parameters[i].detach(), v) for n, v in s.items()} for i, s in state.items()}
    optimizer.load_state_dict({"state": own, "param_groups": groups})
