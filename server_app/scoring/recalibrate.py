"""BatchNorm's running statistics measured by the clients (``score.bn = "recalibrated"``).

A network that only saw noise, or only ever normalised by the batch, has running statistics that are
nobody's. Before the global models are scored, clients say what their BatchNorm layers see of the
training data: n_k, and for each channel of each layer's inputs the mean μ_k and the variance σ²_k.
The server takes what all the data together would give, in float64 and in order of k:

    μ = Σ n_k μ_k / n      σ² = Σ n_k (σ²_k + (μ_k − μ)²) / n      n = Σ n_k

In pass 1 of ``score.passes`` the layers normalise by the batch at hand, in pass p by the statistics
of pass p − 1. A layer behind no other is exact after pass 1, one behind i others after pass i + 1.

In a round that is scored the clients whose replies were used in it are asked, after the last round
all. A client that fails or is refused is left out of the next passes, and ``min-replies`` holds for
the rest. The method's own models keep their statistics, so that scoring changes no training.
"""

import copy
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, final

import torch

from common.exchange.protocol import Reply, StatisticsReply, StatisticsRequest
from common.exchange.records import StateDict
from common.models.batchnorm import MEAN, VARIANCE, statistics
from common.models.classifier import Classifier
from common.settings.config import MethodOptions, not_allowed
from common.training import tree
from server_app.method import Client, Method, Models

FARTHEST = 1e15
"""Largest mean, and its square the largest variance: their pooled variance is a finite float32."""


class ScoredModel(NamedTuple):
    """A global model that is measured: ``statistics`` it has, ``on`` the data of which clients."""

    spec: str
    w: StateDict
    statistics: StateDict
    on: str  #: as ``measured_by`` takes it


@final
class ScoredModels:
    """The global models of ``method`` as they are scored and saved.

    ``statistics``: those measured in the round at hand: of the run's own models by their names, of
    further ones under ``name/architecture``.
    """

    def __init__(self, method: Method[MethodOptions, Reply]) -> None:
        self.method = method
        self.statistics: dict[str, StateDict] = {}

    def raw(self) -> dict[str, Classifier]:
        """The method's networks, or its one model, if there is one, as the method has them."""
        networks = self.method.networks()
        single = self.method.model() if not networks else None
        return networks if single is None else {single.spec: single}

    def nets(self) -> list[Classifier]:
        """The same with what was measured."""
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
        """As the method's: the entries of one network, or of several behind their names. Where
        networks share their layers, the largest one's statistics stand in them.
        """
        w = self.method.weights_to_score()
        if w is None or not self.statistics:
            return w
        whole = dict(w)
        for name in self.raw():
            for entry, value in self.statistics.get(name, {}).items():
                for place in (entry, f"{name}/{entry}"):
                    if place in whole and whole[place].shape == value.shape:
                        whole[place] = value
        return whole

    def _with(self, name: str, net: Classifier) -> Classifier:
        """A copy with the measured statistics, where there are any."""
        if not (found := self.statistics.get(name)):
            return net
        changed = copy.deepcopy(net)
        changed.load_state_dict(changed.state_dict() | found)
        return changed


@final
class Recalibration:
    """One recalibration of what is ``shown``, by the clients ``asked`` as long as they are good.

    Raises ``ValueError`` if clients cannot build a model whose statistics are to be measured.
    """

    def __init__(self, shown: ScoredModels, asked: Sequence[Client]) -> None:
        shown.statistics = {}
        self.shown, self.asked, self.passes = shown, list(asked), 0
        method, task = shown.method, shown.method.task
        held = {
            name: ScoredModel(net.spec, tree.snapshot(net), statistics(net), name)
            for name, net in shown.raw().items()
        }
        for further, models in method.further().items():
            for spec, w in models.items():
                told = statistics(method.build(spec, w))
                held[f"{further}/{spec}"] = ScoredModel(spec, w, told, spec)
        self.models = {name: model for name, model in held.items() if model.statistics}
        for model in self.models.values():
            try:
                tree.check_like(model.w, task.expected(model.spec), "its model")
            except ValueError as error:
                why = f'method = "{method.config.run.method}", whose model clients cannot build'
                raise not_allowed("score.bn", "recalibrated", why, "running", "batch") from error
        self._by = {n: {c.k for c in method.measured_by(m.on)} for n, m in self.models.items()}
        self.measuring = sum(1 for client in asked if self.of(client))  #: how many are asked

    def of(self, client: Client) -> tuple[str, ...]:
        """The names of the models that a client measures."""
        return tuple(name for name in self.models if client.k in self._by[name])

    def request(self) -> list[tuple[Client, StatisticsRequest]]:
        """What the next pass asks."""
        payload = cache(self._measure)  # equal payloads are one object, which is packed once
        return [(client, payload(names)) for client in self.asked if (names := self.of(client))]

    def _measure(self, names: tuple[str, ...]) -> StatisticsRequest:
        known = self.shown.statistics
        return StatisticsRequest(
            specs={name: self.models[name].spec for name in names},
            models={name: self.models[name].w | known.get(name, {}) for name in names},
            by_batch=self.passes == 0,
        )

    def check(self, client: Client, answer: StatisticsReply) -> None:
        """Raise ``ValueError`` for an answer that is not to be used."""
        if answer.n != client.n:
            raise ValueError(
                f"it is over {answer.n} training samples, in the census the client had {client.n}"
            )
        if sorted(answer.models) != (names := sorted(self.of(client))):
            raise ValueError(f"it is of the models {sorted(answer.models)}, expected {names}")
        for name, found in answer.models.items():
            tree.check_like(found, self.models[name].statistics, name)
            for entry, value in found.items():
                most = FARTHEST**2 if entry.endswith(VARIANCE) else FARTHEST
                if bool((value.abs() > most).any()):
                    raise ValueError(f"{name}: {entry!r} has values beyond {most:g}")

    def take(self, good: Sequence[tuple[Client, StatisticsReply]]) -> None:
        """Combine the good answers of a pass; whoever gave none is not asked again."""
        answered, self.passes = {client.k for client, _ in good}, self.passes + 1
        self.asked = [c for c in self.asked if c.k in answered or not self.of(c)]
        for name in self.models:
            parts = [(c.n, answer.models[name]) for c, answer in good if name in answer.models]
            if parts:
                w, found = self.models[name].w, pooled(parts)
                self.shown.statistics[name] = {e: v.to(w[e].dtype) for e, v in found.items()}


def pooled(parts: Sequence[tuple[int, StateDict]]) -> StateDict:
    """Means and variances (C) float64 over all the data, from those over n samples each."""
    found = {name: torch.zeros_like(value) for name, value in parts[0][1].items()}
    total = sum(n for n, _ in parts)
    for name in (name for name in found if name.endswith(MEAN)):
        variance = name.removesuffix(MEAN) + VARIANCE
        for n, part in parts:
            found[name] += n / total * part[name]
        for n, part in parts:
            apart = part[name] - found[name]
            found[variance] += n / total * (part[variance] + apart.square())
    return found
