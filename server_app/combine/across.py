"""Averaging where every client trains its own architecture (``average.across``).

Across depths (``layerwise``) the server holds one network, the largest, of which each client's is a
sub-model. Otherwise (``same``) there is one for each architecture, averaged among its clients
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from common import tree
from common.models.classifier import Classifier
from common.protocol import Down
from common.records import Records, StateDict
from common.tree import check_nested, cut
from server_app.combine.mean import average, average_layers
from server_app.combine.wrapper import Wrapper
from server_app.global_model import Combining, T
from server_app.method import Client, Models, O, Ups


@final
class State(Records):
    models: dict[str, StateDict]
    inner: dict[str, object]


@final
class Across(Wrapper[O, T]):
    """``inner`` with global models for the architectures of all clients, known by the census."""

    keeps = State

    def __init__(self, inner: Combining[O, T]) -> None:
        super().__init__(inner)
        self.layerwise = self.config.average.across == "layerwise"
        self.models = self.overall = {}
        self.specs: list[str] = []
        self.nets: dict[str, Classifier] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        """Build what a checkpoint has not brought back.

        Raises ``ValueError`` if layers are to be shared by networks that do not share them, or if
        the checkpoint is of other architectures.
        """
        for client in clients:
            self.check_size(client)
        super().begin(clients)
        distinct = {client.model: self.task.expected(client.model) for client in clients}
        self.specs = sorted(distinct, key=lambda spec: (_size(distinct[spec]), spec))
        held = [check_nested(distinct, "average.across")] if self.layerwise else self.specs
        self.nets = {spec: self.build(spec) for spec in self.specs}
        if not self.models:
            self.models = {spec: tree.snapshot(self.nets[spec]) for spec in held}
            self.overall = self.models
        elif sorted(self.models) != sorted(held):
            raise ValueError(f"the checkpoint holds {sorted(self.models)}, the clients need {held}")

    def drawn(self) -> Models:
        return {spec: tree.snapshot(self.build(spec)) for spec in self.models}

    def parts(self, models: Models) -> Models:
        if not self.layerwise:
            return {spec: models[spec] for spec in self.specs}
        (whole,) = models.values()
        return {spec: cut(whole, self.task.expected(spec)) for spec in self.specs}

    def flat(self, models: Models) -> StateDict:
        """The largest network's entries, or those of each one behind its name."""
        if self.layerwise:
            return next(iter(models.values()))
        named = sorted(models.items())
        return {f"{spec}/{name}": value for spec, w in named for name, value in w.items()}

    def network(self, spec: str) -> Classifier:
        return self.nets[spec]

    def down(self, t: int) -> Callable[[Client], Down]:
        sent, parts = self.inner.down(t), self.parts(self.models)

        def to(client: Client) -> Down:
            payload = sent(client) if callable(sent) else sent
            return self.inner.part(client, payload, parts[client.model])

        return to

    def aggregate(self, ups: Ups[T], previous: Models) -> Models:
        """Average the clients' weights; an architecture without a client this round stays."""
        return {spec: self._aggregate(spec, ups, before) for spec, before in previous.items()}

    def _aggregate(self, spec: str, ups: Ups[T], before: StateDict) -> StateDict:
        options, net = self.config.average, self.nets[spec]
        parameters = tree.parameters_only(net)
        if self.layerwise:
            states = list(self.inner.states(ups, before, parameters))
            return average_layers(states, ups.sizes, before, options, parameters)
        members = ups.where(lambda client: client.model == spec)
        if not len(members):
            return before
        own = self.inner.states(members, before, parameters)
        return average(own, members.sizes, before, options, net)

    def measured_by(self, spec: str) -> Sequence[Client]:
        """No client computes with a network that is not its own."""
        return [client for client in self.clients if client.model == spec]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.models)

    def model(self) -> Classifier:
        return list(self.networks().values())[-1]

    def state(self) -> State:
        own = {name: value for name, value in self.inner.state() if name != "w"}
        return State(models=self.models, inner=own)

    def restore(self, state: Records) -> None:
        assert isinstance(state, State)
        self.models = dict(state.models)
        inner = {"w": self.inner.flat(self.inner.models), **state.inner}
        self.inner.restore(self.inner.keeps.model_validate(inner))


def _size(state: StateDict) -> int:
    return sum(value.numel() for value in state.values())
