"""Average the clients' models by the settings of [average]: of one architecture, or layer by layer.

Layer-wise: Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous
Devices", 2022 (without its momentum), which FedIN and its baselines use (FedIN, section 4.3). The
server holds the largest network w; client k's is a sub-model (``common/exchange/tree.py``). For
every entry e of w

    w[e] ← Σ_{k has e} p_k w_k[e] / Σ_{k has e} p_k

and an entry that no selected client has stays unchanged. With one architecture it is the ordinary
average.

Robust means (``robust.py``) limit the influence of poisoned clients. The coordinate-wise median and
trimmed mean work for every entry among its owners. Krum, Multi-Krum, the geometric median and
FLTrust compare whole models, so they need clients of one architecture.

Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019: norm clipping,
w_k ← w + (w_k − w) · min(1, M / ‖w_k − w‖), followed by the ordinary weighted average.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch import Tensor

from common import progress
from common.exchange import tree
from common.exchange.records import StateDict
from common.settings.options import WHOLE, Average
from server_app.aggregation.robust import centre, whole


def average(
    states: Iterable[StateDict],
    weights: Sequence[float],
    previous: StateDict,
    options: Average,
    parameters: Set[str],
    trusted: StateDict | None = None,
) -> StateDict:
    """Return Σ_k p_k w_k with p_k ∝ ``weights``.

    Without ``bn-buffers`` only the entries named in ``parameters`` are averaged; the others keep
    their values in ``previous``. ``robust`` replaces the mean by a robust one (``combine`` and
    ``robust.whole``). ``trusted``: for FLTrust, the server's model.
    """
    names = previous.keys() if options.bn_buffers else parameters & previous.keys()
    if options.robust in WHOLE:
        mean = whole(list(states), weights, previous, options, names, trusted)
    else:
        mean = combine(clipped(states, previous, options, names), weights, options)
    return {name: mean[name] if name in names else previous[name] for name in mean}


def average_layers(
    states: Sequence[StateDict],
    sizes: Sequence[int],
    previous: StateDict,
    options: Average,
    parameters: Set[str],
) -> StateDict:
    """Return w of the largest network from its ``previous`` and the clients' ``states`` by k.

    p_k ∝ ``sizes`` or uniform; without ``bn-buffers`` only the entries named in ``parameters`` are
    averaged. ``robust`` applies among the owners of each entry.
    """
    weights = options.shares(sizes)
    names = previous.keys() if options.bn_buffers else parameters
    states = list(clipped(states, previous, options, names))
    result: StateDict = {}
    for name, before in progress.steps(previous.items(), "entry"):
        owners = [k for k, state in enumerate(states) if name in state]
        if owners and name in names:
            owned = [{name: states[k][name]} for k in owners]
            result[name] = combine(owned, [weights[k] for k in owners], options)[name]
        else:
            result[name] = before
    return result


def combine(states: Iterable[StateDict], weights: Sequence[float], options: Average) -> StateDict:
    """Return the weighted mean of the clients' states, or their median or trimmed mean.

    Median and trimmed mean are coordinate-wise with equal weights, and keep all states in memory.
    Integer counters become their maximum.
    """
    if options.robust not in ("median", "trimmed"):
        return tree.mean(states, weights)
    in_memory = list(states)
    if not in_memory:
        raise ValueError("cannot combine 0 states")
    names = progress.steps(in_memory[0], "entry")
    robust, trim = options.robust, options.trim
    return {name: centre([state[name] for state in in_memory], robust, trim) for name in names}


def clipped(
    states: Iterable[StateDict], previous: Mapping[str, Tensor], options: Average, names: Set[str]
) -> Iterable[StateDict]:
    """Return the states, with ``robust = "clip"`` each within ``clip-norm`` of ``previous``.

    The norm covers the averaged floating-point entries, named in ``names``. A state within the norm
    stays unchanged, bit for bit.
    """
    if options.robust != "clip":
        return states
    return (bounded(state, previous, options.clip_norm, names) for state in states)


def bounded(
    state: StateDict, previous: Mapping[str, Tensor], most: float, names: Set[str]
) -> StateDict:
    """Return ``state`` moved to within ``most`` of ``previous``; for ``names`` see ``clipped``."""
    moved = {
        name: value.to(torch.float64) - previous[name].to(torch.float64)
        for name, value in state.items()
        if name in names and value.is_floating_point()
    }
    norm = sum(float(step.square().sum()) for step in moved.values()) ** 0.5
    if norm <= most:
        return state
    near = {
        name: (previous[name].to(torch.float64) + step * (most / norm)).to(state[name].dtype)
        for name, step in moved.items()
    }
    return {**state, **near}
