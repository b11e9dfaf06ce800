"""Average models where every client trains its own architecture (``average.across``).

Across depths (``depth.py``) and widths (``width.py``) the server holds the largest network, and
each client's network is a part of it. Across depths each size may have entries of its own. With
``same`` the server holds one network for each architecture, averaged among its clients.

Membership: the architectures are those of the roster. A newcomer must have the one of its fleet
entry or of ``[node.K]``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
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
    """Base class placed before a method's class: global models for all clients' architectures.

    The architectures are known after the census.
    """

    models: Models = {}  # replaces the property; never modified in place

    def prepare(self) -> None:
        super().prepare()
        self.models = self.overall = {}
        self.specs: list[str] = []
        self.nets: dict[str, Classifier] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        """Build the networks, and the models unless a checkpoint restored them.

        Raises ``ValueError`` if a network must be a part of the largest one and is not, or if the
        checkpoint has other architectures.
        """
        self.check_sizes(clients)
        super().begin(clients)
        distinct = {spec: self.task.expected(spec) for spec in self.architectures()}
        self.specs = sorted(distinct, key=lambda spec: (tree.numbers(distinct[spec]), spec))
        self.global_specs = self.model_specs(distinct)
        self.nets = {spec: self.build(spec) for spec in self.specs}
        if not self.models:
            self.models = self.initial_models()
            self.begin_overall()
        elif sorted(self.models) != sorted(self.global_specs):
            need = f"the clients need {self.global_specs}"
            raise ValueError(f"the checkpoint holds {sorted(self.models)}, {need}")

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    @property
    def trained_names(self) -> Set[str]:
        return frozenset[str]().union(*map(tree.parameters_only, self.nets.values()))

    def initial_models(self) -> Models:
        return {spec: self.initial(spec) for spec in self.specs}

    def start(self, models: Models, client: Client) -> StateDict:
        return self.by_architecture(models)[client.architecture]

    @abstractmethod
    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        """Return the architectures of the global models; ``distinct``: the clients', by name."""

    def network(self, spec: str) -> Classifier:
        return self.nets[spec]

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return a function that gives clients with equal payloads one object, to pack it once."""
        sent, models = super().request(t), self.models
        payloads: dict[tuple[int, Submodel], tuple[Request, Request]] = {}

        def to(client: Client) -> Request:
            payload = sent(client) if callable(sent) else sent
            taken = self.submodel(client, t)._replace(classes=None)
            if (key := (id(payload), taken)) not in payloads:
                w = self.entries(models, taken)
                payloads[key] = payload, self.own_request(client, payload, w)
            return payloads[key][1]

        return to

    def entries(self, models: Models, taken: Submodel) -> StateDict:
        """Return the entries of the global models that belong to a sub-model."""
        return self.by_architecture(models)[taken.spec]

    def measured_by(self, name: str) -> Sequence[Client]:
        """Return the clients of architecture ``name``: no other client can compute with it."""
        return [client for client in self.clients if client.architecture == name]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.models)

    def model(self) -> Classifier | None:
        return next(reversed(self.networks().values()), None)

    def state(self) -> State:
        own = {name: value for name, value in super().state() if name != "w"}
        return State(models=self.models, inner=own)

    def restore(self, state: Mapping[str, object]) -> None:
        kept = State.model_validate(state)
        self.models = dict(kept.models)
        super().restore({"w": self.w, **kept.inner})


@final
class Same(Across[O, T]):
    """One model for each architecture, averaged among its clients."""

    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        return self.specs

    def by_architecture(self, models: Models) -> Models:
        return {spec: models[spec] for spec in self.specs}

    def merged(self, models: Models) -> StateDict:
        """Return all entries as one state dict, with keys ``architecture/entry``."""
        named = sorted(models.items())
        return {f"{spec}/{name}": value for spec, w in named for name, value in w.items()}

    def aggregate(self, replies: Replies[T], previous: Models) -> Models:
        """Average each architecture; one without a client in this round stays unchanged."""
        return {spec: self._aggregate(spec, replies, before) for spec, before in previous.items()}

    def _aggregate(self, spec: str, replies: Replies[T], before: StateDict) -> StateDict:
        members = replies.where(lambda client: client.architecture == spec)
        if not len(members):
            return before
        options, parameters = self.config.average, tree.parameters_only(self.nets[spec])
        own = self.states(members, before, parameters)
        trusted = self.trusted(spec, before, members.sizes)
        return average(own, members.sizes, before, options, parameters, trusted)
