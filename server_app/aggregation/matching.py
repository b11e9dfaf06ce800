"""Match the entries of the clients' networks where each trains its own architecture.

``average.across`` chooses the matching. Across depths (``depth.py``) and widths (``width.py``) the
server holds the largest network, and each client's network is a part of it. Across depths each size
may have entries of its own. With ``same`` the server holds one network for each architecture,
averaged among its clients.

Membership: the architectures are those of the roster. A newcomer must have the one of its fleet
entry or of ``[node.K]``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TypeVar, final

from common.exchange import tree
from common.exchange.protocol import ModelReply
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.techniques.widths import Submodel
from common.training.task import Task
from server_app.method import Client, Models, Replies

T = TypeVar("T", bound=ModelReply)
States = Callable[[Replies[T], StateDict, Set[str]], Iterable[StateDict]]
"""``Averaged.states``: the state dicts to average, from replies, previous w and parameter names."""


@final
class State(Records, kind="across.State"):
    models: dict[str, StateDict]
    inner: dict[str, object]


class Matching(ABC):
    """Global models for all clients' architectures, which are known after the census."""

    main: str = ""  #: as ``Method.main``

    def __init__(self, task: Task) -> None:
        self.task, self.options = task, task.config.average
        self.models: Models = {}  #: the global models; never modified in place
        self.specs: list[str] = []  #: the clients' architectures, smallest first
        self.nets: dict[str, Classifier] = {}  #: a network of each, with any weights

    def begin(self, specs: Iterable[str], build: Callable[[str], Classifier]) -> None:
        """Set the clients' architectures, and build a network of each.

        Raises ``ValueError`` if a network must be a part of the largest one and is not.
        """
        distinct = {spec: self.task.expected(spec) for spec in specs}
        self.specs = sorted(distinct, key=lambda spec: (tree.numbers(distinct[spec]), spec))
        self.global_specs = self.model_specs(distinct)
        self.nets = {spec: build(spec) for spec in self.specs}

    def check_models(self) -> None:
        """Raise ``ValueError`` if the models, from a checkpoint, have other architectures."""
        if sorted(self.models) != sorted(self.global_specs):
            need = f"the clients need {self.global_specs}"
            raise ValueError(f"the checkpoint holds {sorted(self.models)}, {need}")

    @abstractmethod
    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        """Return the architectures of the global models; ``distinct``: the clients', by name."""

    @property
    def parameter_names(self) -> Set[str]:
        """Names of the parameters of all networks."""
        return frozenset[str]().union(*map(tree.parameters_only, self.nets.values()))

    @abstractmethod
    def initial(self, weights: Callable[[str], StateDict]) -> Models:
        """Return the initial models; ``weights``: the initial weights of an architecture."""

    @abstractmethod
    def by_architecture(self, models: Models) -> Models:
        """Return the weights that each architecture trains and scores, smallest first."""

    @abstractmethod
    def merged(self, models: Models) -> StateDict:
        """Return all weights of the global models as one state dict."""

    def submodel(self, client: Client, t: int) -> Submodel:
        """Return the part of the global models that a client trains in round t."""
        return Submodel(client.architecture)

    def entries(self, models: Models, submodel: Submodel) -> StateDict:
        """Return the entries of the global models that belong to a sub-model."""
        return self.by_architecture(models)[submodel.spec]

    def measured_by(self, clients: Sequence[Client], name: str) -> Sequence[Client]:
        """Return the clients of architecture ``name``: no other client can compute with it."""
        return [client for client in clients if client.architecture == name]


@final
class Same(Matching):
    """One model for each architecture, averaged among its clients."""

    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        return self.specs

    def initial(self, weights: Callable[[str], StateDict]) -> Models:
        return {spec: weights(spec) for spec in self.specs}

    def by_architecture(self, models: Models) -> Models:
        return {spec: models[spec] for spec in self.specs}

    def merged(self, models: Models) -> StateDict:
        """Return all entries as one state dict, with keys ``architecture/entry``."""
        named = sorted(models.items())
        return {f"{spec}/{name}": value for spec, w in named for name, value in w.items()}


class Joint(Matching, ABC):
    """Networks that have entries in common, and are averaged together."""

    @abstractmethod
    def aggregate(self, t: int, replies: Replies[T], previous: Models, states: States[T]) -> Models:
        """Return the combination of round t's uploads; ``previous``: the models before it."""
