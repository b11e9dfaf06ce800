"""The OCA model: the mean over the latest uploads of all clients (FedKF, section IV-A)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from common.methods.fedavg import Caching
from common.records import StateDict
from server_app.combine.averaging import average
from server_app.combine.uploads import Slots
from server_app.talk.census import Client


def overall(
    slots: Slots,
    clients: Sequence[Client],
    first: StateDict,
    previous: StateDict,
    options: Caching,
    net: nn.Module,
) -> StateDict:
    """ŵ ← Σ_k p_k w_k over the slots in order of k, with the weights of ``average``.

    ``first`` is w⁰, which stands in empty slots under ``oca-init = "w0"``; ``previous`` is the last
    ŵ, for buffers that are not averaged.
    """
    members = [c for c in clients if c.k in slots or options.oca_init == "w0"]
    states = slots.states([client.k for client in members], first)
    return average(states, [client.n for client in members], previous, options, net)
