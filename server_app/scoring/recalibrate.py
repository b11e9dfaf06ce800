"""BatchNorm's running statistics measured by the clients (``score.bn = "recalibrated"``).

A network that was trained on noise, or only normalised by batches, has running statistics that do
not match any client's data. Before the global models are scored, clients send statistics over their
training data: n_k, and for each channel of each BatchNorm layer's input the mean μ_k and the
variance σ²_k. The server computes the statistics over all the data, in float64 and in order of k:

    μ = Σ n_k μ_k / n      σ² = Σ n_k (σ²_k + (μ_k − μ)²) / n      n = Σ n_k

In pass 1 of ``score.passes`` the layers normalise by each batch, in pass p by the statistics of
pass p − 1. The first layer is exact after pass 1, a layer behind i others after pass i + 1.

The clients whose replies were used in the round measure; after the last round, all clients do. A
client that fails or is refused is left out of the next passes, and ``min-replies`` applies to the
rest. The method's own models keep their statistics, so that scoring does not change training.
"""

import copy
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, final

import torch

from common.exchange import tree
from common.exchange.protocol import Reply, StatisticsReply, StatisticsRequest
from common.exchange.records import StateDict
from common.models.batchnorm import MEAN, VARIANCE, statistics
from common.models.classifier import Classifier
from common.settings.config import MethodOptions, not_allowed
from server_app.method import Client, Method, Models

FARTHEST = 1e15
"""Largest valid mean; its square is the largest valid variance, so sums are finite in float32."""


class ScoredModel(NamedTuple):
    """A global model with its BatchNorm ``statistics``, and the clients that measure them."""

    spec: str
    w: StateDict
    statistics: StateDict
    on: str  #: argument of ``measured_by``


@final
class ScoredModels:
    """The global models of ``method`` as they are scored and saved.

    ``statistics``: those measured in the current round, by the name of the run's models; for
    further models by ``name/architecture``.
    """

    def __init__(self, method: Method[MethodOptions, Reply]) -> None:
        self.method = method
        self.statistics: dict[str, StateDict] = {}

    def raw(self) -> dict[str, Classifier]:
        """Return the method's networks, else its only model if any, with their own statistics."""
        networks = self.method.networks()
        single = self.method.model() if not networks else None
        return networks if single is None else {single.spec: single}

    def nets(self) -> list[Classifier]:
        """Return the networks of ``raw`` with the measured statistics."""
        return [self._with(name, net) for name, net in self.raw().items()]

    def networks(self) -> dict[str, Classifier]:
        """Return the method's networks by name, with the measured statistics."""
        return {name: self._with(name, net) for name, net in self.method.networks().items()}

    def further(self) -> dict[str, Models]:
        """Return the method's further models by name, with the measured statistics."""
        return {
            name: {spec: w | self.statistics.get(f"{name}/{spec}", {}) for spec, w in of.items()}
            for name, of in self.method.further().items()
        }

    def weights_to_score(self) -> StateDict | None:
        """Return the method's weights to score with the measured statistics.

        Entries of several networks begin with the network's name. Where networks share layers, the
        statistics are those of the largest.
        """
        w = self.method.weights_to_score()
        if w is None or not self.statistics:
            return w
        merged = dict(w)
        for name in self.raw():
            for entry, value in self.statistics.get(name, {}).items():
                for place in (entry, f"{name}/{entry}"):
                    if place in merged and merged[place].shape == value.shape:
                        merged[place] = value
        return merged

    def _with(self, name: str, net: Classifier) -> Classifier:
        """Return a copy of ``net`` with the measured statistics, or ``net`` if there are none."""
        if not (measured := self.statistics.get(name)):
            return net
        changed = copy.deepcopy(net)
        changed.load_state_dict(changed.state_dict() | measured)
        return changed


@final
class Recalibration:
    """Measurement of the statistics of the models ``scored`` by ``clients``, in passes.

    Raises ``ValueError`` if clients cannot build one of the models.
    """

    def __init__(self, scored: ScoredModels, clients: Sequence[Client]) -> None:
        scored.statistics = {}
        self.scored, self.clients, self.passes = scored, list(clients), 0
        method, task = scored.method, scored.method.task
        models = {
            name: ScoredModel(net.spec, tree.snapshot(net), statistics(net), name)
            for name, net in scored.raw().items()
        }
        for further, of_name in method.further().items():
            for spec, w in of_name.items():
                own = statistics(method.build(spec, w))
                models[f"{further}/{spec}"] = ScoredModel(spec, w, own, spec)
        self.models = {name: model for name, model in models.items() if model.statistics}
        for model in self.models.values():
            try:
                tree.check_like(model.w, task.expected(model.spec), "its model")
            except ValueError as error:
                why = f'method = "{method.config.run.method}", whose model clients cannot build'
                raise not_allowed("score.bn", "recalibrated", why, "running", "batch") from error
        self._by = {n: {c.k for c in method.measured_by(m.on)} for n, m in self.models.items()}
        self.measuring = sum(1 for c in clients if self.models_of(c))  #: clients that measure

    def models_of(self, client: Client) -> tuple[str, ...]:
        """Return the names of the models that a client measures."""
        return tuple(name for name in self.models if client.k in self._by[name])

    def request(self) -> list[tuple[Client, StatisticsRequest]]:
        """Return each client's request of the next pass."""
        payload = cache(self._measure)  # equal requests are one object, which is packed once
        return [(c, payload(names)) for c in self.clients if (names := self.models_of(c))]

    def _measure(self, names: tuple[str, ...]) -> StatisticsRequest:
        known = self.scored.statistics
        return StatisticsRequest(
            specs={name: self.models[name].spec for name in names},
            models={name: self.models[name].w | known.get(name, {}) for name in names},
            by_batch=self.passes == 0,
        )

    def check(self, client: Client, reply: StatisticsReply) -> None:
        """Raise ``ValueError`` for a reply that is not valid."""
        if reply.n != client.n:
            raise ValueError(
                f"it is over {reply.n} training samples, in the census the client had {client.n}"
            )
        if sorted(reply.models) != (names := sorted(self.models_of(client))):
            raise ValueError(f"it is of the models {sorted(reply.models)}, expected {names}")
        for name, measured in reply.models.items():
            tree.check_like(measured, self.models[name].statistics, name)
            for entry, value in measured.items():
                most = FARTHEST**2 if entry.endswith(VARIANCE) else FARTHEST
                if bool((value.abs() > most).any()):
                    raise ValueError(f"{name}: {entry!r} has values beyond {most:g}")

    def take(self, good: Sequence[tuple[Client, StatisticsReply]]) -> None:
        """Combine the good replies of a pass; clients without one leave the next passes."""
        replied, self.passes = {client.k for client, _ in good}, self.passes + 1
        self.clients = [c for c in self.clients if c.k in replied or not self.models_of(c)]
        for name in self.models:
            measured = [(c.n, reply.models[name]) for c, reply in good if name in reply.models]
            if measured:
                w = self.models[name].w
                pool = pooled(measured).items()
                self.scored.statistics[name] = {entry: v.to(w[entry].dtype) for entry, v in pool}


def pooled(measured: Sequence[tuple[int, StateDict]]) -> StateDict:
    """Return means and variances (C), float64, of all data from those of parts of n samples."""
    pool = {name: torch.zeros_like(value) for name, value in measured[0][1].items()}
    total = sum(n for n, _ in measured)
    for name in (name for name in pool if name.endswith(MEAN)):
        variance = name.removesuffix(MEAN) + VARIANCE
        for n, of_client in measured:
            pool[name] += n / total * of_client[name]
        for n, of_client in measured:
            apart = of_client[name] - pool[name]
            pool[variance] += n / total * (of_client[variance] + apart.square())
    return pool
