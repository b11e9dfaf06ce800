"""Averaging where every client trains its own architecture (``average.across``).

Across depths (``depth.py``) and widths (``width.py``) the server holds one network, the largest, of
which each client's is a part, and across depths also what each size keeps of its own. Otherwise
(``same``) there is one for each architecture, averaged among its clients alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import final

from common.exchange.protocol import Request
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.techniques.widths import Submodel
from common.training import tree
from server_app.aggregation.mean import average
from server_app.global_model import Averaged, T
from server_app.method import Client, Models, O, Replies


@final
class State(Records, kind="across.State"):
    models: dict[str, StateDict]
    inner: dict[str, object]


class Across(Averaged[O, T], ABC):
    """In front of a method: global models for the architectures of all clients, known by the
    census.
    """

    models: Models = {}  # in place of the property; never changed

    def prepare(self) -> None:
        super().prepare()
        self.models = self.overall = {}
        self.specs: list[str] = []
        self.nets: dict[str, Classifier] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        """Build what a checkpoint has not brought back.

        Raises ``ValueError`` if networks are to be parts of one and are not, or if the checkpoint
        is of other architectures.
        """
        self.check_sizes(clients)
        super().begin(clients)
        distinct = {spec: self.task.expected(spec) for spec in self.architectures()}
        self.specs = sorted(distinct, key=lambda spec: (tree.numbers(distinct[spec]), spec))
        self.held = self.hold(distinct)
        self.nets = {spec: self.build(spec) for spec in self.specs}
        if not self.models:
            self.models = self.drawn()
            self.begin_overall()
        elif sorted(self.models) != sorted(self.held):
            need = f"the clients need {self.held}"
            raise ValueError(f"the checkpoint holds {sorted(self.models)}, {need}")

    def drawn(self) -> Models:
        return {spec: tree.snapshot(self.build(spec)) for spec in self.specs}

    def start(self, models: Models, client: Client) -> StateDict:
        return self.parts(models)[client.model]

    @abstractmethod
    def hold(self, distinct: Mapping[str, StateDict]) -> list[str]:
        """The architectures of the global models; ``distinct``: the clients', by their names."""

    def network(self, spec: str) -> Classifier:
        return self.nets[spec]

    def request(self, t: int) -> Callable[[Client], Request]:
        """Equal payloads are one object, which is packed once."""
        sent, models = super().request(t), self.models
        payloads: dict[tuple[int, Submodel], tuple[Request, Request]] = {}

        def to(client: Client) -> Request:
            payload = sent(client) if callable(sent) else sent
            taken = self.taken(client, t)._replace(classes=None)
            if (known := (id(payload), taken)) not in payloads:
                w = self.entries(models, taken)
                payloads[known] = payload, self.part(client, payload, w)
            return payloads[known][1]

        return to

    def entries(self, models: Models, taken: Submodel) -> StateDict:
        """What a client is sent that takes so much of global models."""
        return self.parts(models)[taken.spec]

    def measured_by(self, name: str) -> Sequence[Client]:
        """No client computes with a network that is not its own."""
        return [client for client in self.clients if client.model == name]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.models)

    def model(self) -> Classifier:
        return list(self.networks().values())[-1]

    def state(self) -> State:
        own = {name: value for name, value in super().state() if name != "w"}
        return State(models=self.models, inner=own)

    def restore(self, state: Mapping[str, object]) -> None:
        kept = State.model_validate(state)
        self.models = dict(kept.models)
        super().restore({"w": self.w, **kept.inner})


@final
class Same(Across[O, T]):
    """A model for each architecture, averaged among its clients."""

    def hold(self, distinct: Mapping[str, StateDict]) -> list[str]:
        return self.specs

    def parts(self, models: Models) -> Models:
        return {spec: models[spec] for spec in self.specs}

    def flat(self, models: Models) -> StateDict:
        """The entries of each one behind its name."""
        named = sorted(models.items())
        return {f"{spec}/{name}": value for spec, w in named for name, value in w.items()}

    def aggregate(self, replies: Replies[T], previous: Models) -> Models:
        """An architecture without a client this round stays."""
        return {spec: self._aggregate(spec, replies, before) for spec, before in previous.items()}

    def _aggregate(self, spec: str, replies: Replies[T], before: StateDict) -> StateDict:
        members = replies.where(lambda client: client.model == spec)
        if not len(members):
            return before
        options, parameters = self.config.average, tree.parameters_only(self.nets[spec])
        own = self.states(members, before, parameters)
        return average(own, members.sizes, before, options, parameters)
