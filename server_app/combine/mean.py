"""The mean of the clients' copies, as [average] says: of one architecture, or layer by layer.

Layer-wise: Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous
Devices", 2022 (without its momentum), which FedIN and its baselines use (FedIN, section 4.3). The
server holds the largest network w; client k's is a sub-model (``common/tree.py``). For every
entry e of w

    w[e] ← Σ_{k has e} p_k w_k[e] / Σ_{k has e} p_k

and what no selected client has stays. With one architecture it is the ordinary average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from torch import nn

from common import tree
from common.options import Average
from common.records import StateDict
from server_app.combine.robust import clipped, combine


def average(
    states: Iterable[StateDict],
    sizes: Sequence[int],
    previous: StateDict,
    options: Average,
    net: nn.Module,
) -> StateDict:
    """Σ_k p_k w_k with p_k ∝ n_k or uniform; ``net`` tells parameters from buffers.

    Without ``bn-buffers`` floating-point buffers stay as they are in ``previous``. ``robust`` puts
    something sturdier in place of the mean (``robust.py``).
    """
    weights = sizes if options.weights == "samples" else [1] * len(sizes)
    names = previous.keys() if options.bn_buffers else tree.parameters_only(net)
    mean = combine(clipped(states, previous, options, names), weights, options)
    return {name: mean[name] if name in names else previous[name] for name in mean}


def average_layers(
    states: Sequence[StateDict],
    sizes: Sequence[int],
    previous: StateDict,
    options: Average,
    parameters: Set[str],
) -> StateDict:
    """w of the largest network, from its ``previous`` and the clients' ``states`` in order of k.

    p_k ∝ ``sizes`` or uniform; without ``bn-buffers`` only the entries named in ``parameters`` are
    averaged. ``robust`` works among the owners of each entry.
    """
    weights = sizes if options.weights == "samples" else [1] * len(sizes)
    names = previous.keys() if options.bn_buffers else parameters
    states = list(clipped(states, previous, options, names))
    result: StateDict = {}
    for name, before in previous.items():
        owners = [k for k, state in enumerate(states) if name in state]
        if owners and name in names:
            parts = [{name: states[k][name]} for k in owners]
            result[name] = combine(parts, [weights[k] for k in owners], options)[name]
        else:
            result[name] = before
    return result
