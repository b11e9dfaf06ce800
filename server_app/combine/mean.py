"""The mean of the clients' copies of one architecture's model, as [average] says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
