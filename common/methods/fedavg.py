"""FedAvg: federated averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
Algorithm 1.

Round t: the server sends w to the selected clients S_t; each trains E epochs of SGD from w on its
own n_k samples and returns w_k; the server sets

    w ← Σ_{k∈S_t} p_k w_k,    p_k = n_k / Σ n (``weights = "samples"``) or 1/|S_t| (``"uniform"``)

With ``inactive = true`` the server keeps every client's latest w_k and also takes the same mean
over all of them: the OCA model ŵ (overall clients aggregated; FedKF, section IV-A, technique T1),
beside the ACA model w (active clients aggregated), which is still the one that is sent. ŵ is then
the run's model; both are scored.

Every client trains the global architecture, whatever its entry in the fleet; it keeps nothing.
With ``across`` it trains its own: ``layerwise`` averages each layer over all clients that have it
(``server_app/combine/layerwise.py``; the server holds the largest network, of which all others must
be sub-models), ``same`` only within equal architectures. The run's accuracy is then the mean over
the architectures' models. There is no ŵ across architectures.

Deviations: the paper has no BatchNorm. Floating-point buffers are averaged like parameters
(``bn-buffers``), as in all code bases that we know; integer counters keep the largest.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

from pydantic import Field

from common import protocol
from common.config import Positive, Section
from common.records import StateDict


class Averaging(Section):
    """Knobs of every method that averages models."""

    weights: Literal["samples", "uniform"]
    bn_buffers: bool
    """Average BatchNorm's running statistics; otherwise the server keeps its own."""
    robust: Literal["none", "median", "trimmed", "clip"]
    """Instead of the mean: coordinate-wise median or trimmed mean of the clients, who then all
    count alike; or the mean after each client's step from the previous model is shortened to
    ``clip-norm``. See ``server_app/combine/robust.py``."""
    trim: Annotated[float, Field(ge=0, lt=0.5)]
    """Share of the clients left out at each end under ``trimmed``, at least one of three."""
    clip_norm: Positive
    """Longest step of a client under ``clip``: Euclidean, over everything that is averaged."""

    @property
    def averages_nothing(self) -> str:
        """The setting that leaves no mean for ``robust`` to replace; empty if there is one."""
        return ""


class Caching(Averaging):
    """Knobs of active-inactive aggregation: the server's cache has one slot for each client."""

    oca_init: Literal["uploaded", "w0"]
    """Clients that never uploaded: left out of ŵ, or standing in it with the first model w⁰."""
    slots_in_memory: Annotated[int, Field(ge=0)]
    """Newest slots kept in memory and in the checkpoint; older ones lie in files beside it."""


Across = Literal["none", "layerwise", "same"]
"""All clients train the global architecture, or each its own, averaged in one of two ways."""


@final
class Config(Caching):
    across: Across
    inactive: bool
    """Active-inactive aggregation."""


@final
class Down(protocol.Down):
    w: StateDict  #: global model


@final
class Up(protocol.Up):
    w: StateDict  #: w_k, trained from w
