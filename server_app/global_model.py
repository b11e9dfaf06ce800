"""Server halves around a global model, and those whose model is a mean of what clients trained.

``Averaged`` is the base of an averaging method, which overrides how the copies are combined, or
what follows. The classes in ``aggregation/`` derive from it too and wrap a method: they average
across architectures, or over the cached uploads of all clients (OCA).
"""

from abc import ABC
from collections.abc import Callable, Iterable, Set
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from common.exchange.protocol import ModelReply, ModelRequest, Request
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.models.offloaded import OffloadedModel
from common.techniques.widths import Submodel
from common.training import tree
from server_app.aggregation.mean import average
from server_app.aggregation.privacy import NoisyMean
from server_app.method import Client, Method, Metrics, Models, O, Replies, U


class Weights(Records, kind="global_model.Weights"):
    """What round t + 1 depends on where w is all there is."""

    w: StateDict


class GlobalModel(Method[O, U], ABC):
    """Holds w in the architecture ``global_spec``, first drawn for the server; sends and scores it.

    A method that keeps more names it in ``state_type``. ``net`` is for computing with w; while
    clients work it takes no memory, and whoever asks for it then finds w in it.
    """

    state_type: ClassVar[type[Records]] = Weights

    def prepare(self) -> None:
        super().prepare()
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    @property
    def net(self) -> Classifier:
        if self._rest.wake():
            self._rest.net.load_state_dict(self.w)
        return self._rest.net

    @net.setter
    def net(self, net: Classifier) -> None:
        self._rest = OffloadedModel(net)

    @property
    def parameter_names(self) -> frozenset[str]:
        """Names of the entries of w that are parameters, not buffers."""
        return tree.parameters_only(self._rest.net)

    def release_memory(self) -> None:
        super().release_memory()
        self._rest.begin()

    def request(self, t: int) -> Request | Callable[[Client], Request]:
        return ModelRequest(w=self.w)

    def model(self) -> Classifier | None:
        self.net.load_state_dict(self.w)
        return self.net

    def predicted(self, x: Tensor) -> Tensor:
        """softmax f(w; x) [n, C] on images x [n, C, H, W], on the CPU."""
        self.net.load_state_dict(self.w)
        return torch.softmax(self.task.logits(self.net, x), dim=1)


T = TypeVar("T", bound=ModelReply)


class Averaged(GlobalModel[O, T], ABC):
    """w ← Σ_{k∈S_t} p_k w_k, as [average] says: a global model, or one for each architecture."""

    overall: Models
    """The combination of every client's latest upload (OCA); nothing where nothing caches them."""
    private: NoisyMean | None = None  #: under differential privacy
    widest: bool = False
    """``average.across = "width"``: the widest network is ``main``."""
    by_width: bool = False
    """``average.across = "width"``: convolutions are weighed by the client's channels too."""

    def prepare(self) -> None:
        super().prepare()
        self.begin_overall()
        if self.config.privacy.on:
            self.private = NoisyMean(self.config)

    def begin_overall(self) -> None:
        """ŵ before anybody has sent an upload; nobody looks for it where uploads are not cached."""
        self.overall = self.models if self.config.oca.aggregate == "on" else {}

    def select(self, t: int) -> list[Client]:
        if self.private is None or self.config.privacy.sampling == "public":
            return super().select(t)
        return [self.clients[k] for k in self.private.selected(t, len(self.clients))]

    @property
    def models(self) -> Models:
        """The combination of the active clients' uploads (ACA)."""
        return {self.global_spec: self.w}

    @models.setter
    def models(self, models: Models) -> None:
        self.w = models[self.global_spec]

    def check(self, client: Client, reply: T) -> None:
        spec = self.trains(client)
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    # A round.

    def step(self, t: int, replies: Replies[T]) -> Metrics:
        self.t = t
        self.models, found = self.refine(t, replies, self.aggregate(replies, self.models))
        return {**found, **self.after(t, replies)}

    def aggregate(self, replies: Replies[T], previous: Models) -> Models:
        """The method's combination of the uploads; ``previous``: of the round before."""
        return {spec: self.combine(replies, w) for spec, w in previous.items()}

    def combine(self, replies: Replies[T], previous: StateDict) -> StateDict:
        """The new w of one architecture from at least one upload; with noise, from any number."""
        names = self.parameter_names
        states = self.states(replies, previous, names)
        if self.private is not None:
            return self.private.mean(self.t, states, previous, names, len(self.clients))
        return average(states, replies.sizes, previous, self.config.average, names)

    def states(
        self, replies: Replies[T], previous: StateDict, parameters: Set[str]
    ) -> Iterable[StateDict]:
        """What of the uploads is averaged; ``previous``: the model before, with its parameters."""
        found = (reply.w for _, reply in replies)
        return list(found) if replies.here else found

    def refine(self, t: int, replies: Replies[T], models: Models) -> tuple[Models, Metrics]:
        """What the method makes of the combination of ``replies``, such as students of theirs;
        numbers for the journal.
        """
        return models, {}

    def after(self, t: int, replies: Replies[T]) -> Metrics:
        """What the method does once round t's uploads are combined."""
        return {}

    def cached(self, reply: T) -> T:
        """What of an upload a later combination needs."""
        return reply.model_copy(update={"metrics": {}})

    # The models, and what clients train of them.

    def drawn(self) -> Models:
        """The models as they were before any round."""
        return {self.global_spec: tree.snapshot(self.build(self.global_spec))}

    def parts(self, models: Models) -> Models:
        """What each architecture trains and is scored by, smallest first."""
        return models

    def flat(self, models: Models) -> StateDict:
        """All the weights of global models as one state dict."""
        return models[self.global_spec]

    def network(self, spec: str) -> Classifier:
        """The network of an architecture on the server's device, with any weights."""
        return self.net

    def classifiers(self, models: Models) -> dict[str, Classifier]:
        """The networks with these weights, smallest first."""
        found = {}
        for spec, w in self.parts(models).items():
            found[spec] = self.network(spec)
            found[spec].load_state_dict(w)
        return found

    def weights_to_score(self) -> StateDict | None:
        return self.flat(self.models)

    def trains(self, client: Client) -> str:
        """The architecture that a client trains."""
        return self.global_spec if self.config.average.across == "none" else client.model

    def start(self, models: Models, client: Client) -> StateDict:
        """The weights in global models that a client trains from."""
        return self.parts(models)[self.trains(client)]

    def part(self, client: Client, sent: Request, w: StateDict) -> Request:
        """What a client is sent that trains its own architecture, which has ``w``."""
        return sent.model_copy(update={"w": w})

    def architectures(self) -> list[str]:
        """All that clients may train, where each trains its own; after the census."""
        return sorted({client.model for client in self.clients})

    def taken(self, client: Client, t: int) -> Submodel:
        """What a client takes of the widest network in round t (``average.across = "width"``)."""
        return Submodel(self.trains(client))
