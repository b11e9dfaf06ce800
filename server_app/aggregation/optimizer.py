"""The server's optimizer: a step from the model before a round towards the clients' mean.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. With Δ the mean minus the
model before the round, and for each parameter

    sgd:       m ← β m + Δ                        w ← w + η m
    adagrad:   m = Δ,                v ← v + Δ²    w ← w + η m / (√v + τ)
    yogi:      m ← β₁ m + (1−β₁) Δ,  v ← v − (1−β₂) Δ² sign(v − Δ²)
    adam:      the same m,           v ← β₂ v + (1−β₂) Δ²
    amsgrad:   as adam, with the largest v so far in the step

m begins with 0 and v with τ²; nothing is corrected for bias. ``sgd`` with β > 0 is FedAvgM (Hsu,
Qi, Brown 2019), with β = 0 and η = 1 it is the plain mean. Buffers take the mean. A parameter that
no client of the round has stays unchanged.
"""

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from common.exchange.records import StateDict
from common.settings.options import Average

Moments = dict[str, StateDict]
"""Moments ``m``, ``v`` and ``top`` (the largest v so far) by the name of the parameter."""


def step(
    options: Average,
    previous: StateDict,
    mean: StateDict,
    moments: Mapping[str, StateDict],
    parameters: Set[str],
) -> tuple[StateDict, Moments]:
    """Return the model after the step, and the moments after it.

    ``previous``, ``mean``: the model before the round and the clients' mean; ``parameters``: names
    of the entries that are parameters. Computes in float64.
    """
    stepped, kept = dict(mean), {key: dict(moments.get(key, {})) for key in ("m", "v", "top")}
    for name in (n for n in mean if n in parameters and mean[n] is not previous[n]):
        w = previous[name].double()
        now = {key: kept[key][name].double() for key in kept if name in kept[key]}
        update = _update(options, mean[name].double() - w, now)
        stepped[name] = (w + options.server_rate * update).to(mean[name].dtype)
        for key, value in now.items():
            kept[key][name] = value.to(mean[name].dtype)
    return stepped, {key: values for key, values in kept.items() if values}


def _update(o: Average, delta: Tensor, now: StateDict) -> Tensor:
    """Return the change of a parameter for η = 1, and set its moments in ``now``."""
    if o.server_optimizer == "sgd":
        if o.server_momentum:
            now["m"] = delta = o.server_momentum * now.get("m", torch.zeros_like(delta)) + delta
        return delta
    m, square = delta, delta.square()
    v = now.get("v", torch.full_like(delta, o.server_tau**2))
    if o.server_optimizer == "adagrad":
        v = v + square
    else:
        m = o.server_beta1 * now.get("m", torch.zeros_like(delta)) + (1 - o.server_beta1) * delta
        now["m"] = m
        change = (v - square).sign() * square if o.server_optimizer == "yogi" else v - square
        v = v - (1 - o.server_beta2) * change
    now["v"] = v
    if o.server_optimizer == "amsgrad":
        now["top"] = v = torch.maximum(v, now.get("top", v))
    return m / (v.sqrt() + o.server_tau)
