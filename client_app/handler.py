"""A client half: what participant k does with a message of one method."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar, cast, final

from client_app.participant import Participant
from common import models
from common.exchange.protocol import (
    CensusRequest,
    ClientInfo,
    ModelReply,
    ModelRequest,
    Reply,
    Request,
    ScoreReply,
    ScoreRequest,
    StatisticsReply,
    StatisticsRequest,
)
from common.exchange.records import StateDict, tensors
from common.models.classifier import Classifier
from common.settings.config import MethodOptions
from common.settings.names import version_of
from common.techniques.privacy import averaged, clipped, flattened, moved, noised
from common.training import costs, tree

O = TypeVar("O", bound=MethodOptions)  # noqa: E741 - a method's options
D = TypeVar("D", bound=Request)
Q = TypeVar("Q", bound=Request)
U = TypeVar("U", bound=Reply)


class Handler(ABC, Generic[O, D]):
    """One per message; what must outlive it goes through ``participant.save_state``."""

    request_type: ClassVar[type[Request]]
    """What a round begins with."""
    second_request_type: ClassVar[type[Request] | None] = None
    """The message of a second exchange in a round, where the method has one."""

    def __init__(self, participant: Participant) -> None:
        self.participant, self.task = participant, participant.task
        self.config = participant.config
        self.options = cast("O", participant.config.method)

    @property
    def spec(self) -> str:
        """The architecture this client brings."""
        return self.participant.spec

    @property
    def size(self) -> float:
        """The share of the global model's entries that this client trains."""
        return 1.0

    @property
    def shared_spec(self) -> str:
        """The architecture of the global model that this client scores."""
        return self.participant.global_spec

    @property
    def n_test(self) -> int:
        """On how many samples this client scores."""
        return self.participant.n_test

    def admit(self) -> None:
        """Raise ``ValueError`` if this client cannot take part in the method."""

    def public(self) -> str:
        """Fingerprint of the public set as this client sees it; empty if the method has none."""
        return ""

    def hello(self, hello: CensusRequest) -> ClientInfo:
        """Who this client is; under ``privacy.mode = "local"`` without sizes and classes.

        Raises ``ValueError`` if it cannot take part.
        """
        p, task = self.participant, self.task
        if p.clients != hello.clients:
            raise ValueError(f"this client expects {p.clients} clients, the server {hello.clients}")
        models.check(p.spec, task.shape, task.num_classes, stem=task.stem)
        self.admit()
        info = ClientInfo(
            n=p.n,
            n_test=self.n_test,
            model=self.spec,
            size=self.size,
            classes=[c for c, count in enumerate(p.counts) if count],
            counts=p.counts if self.config.run.share_counts else None,
            task=task.fingerprint,
            public=self.public(),
            version=version_of(self.config),
        )
        if self.config.privacy.mode != "local":
            return info
        classes = list(range(task.num_classes))
        return info.model_copy(update={"n": 1, "n_test": 0, "classes": classes, "counts": None})

    @abstractmethod
    def train(self, request: D) -> Reply:
        """Round t's local work."""

    def second(self, request: Request) -> Reply:
        """The work of the second exchange of round t, after the server's step."""
        raise ValueError(f"{type(self).__name__} has no second exchange in a round")

    def own_model(self, t: int) -> Classifier | None:
        """The client's own network after round t; None where it has none but the global one."""
        return None

    def shared(self, w: StateDict, spec: str) -> Classifier:
        """What the client scores of a global model: by default of the architecture ``spec`` that
        the server names, or of its own way to see it. Nobody keeps it beyond the next call.
        """
        return self.task.shown(spec or self.shared_spec, w)

    def score(self, ask: ScoreRequest) -> ScoreReply:
        """Accuracies of the client's own and of the global model on the client's test share."""
        p = self.participant
        shared = p.accuracy(self.shared(ask.w, ask.spec)) if ask.w is not None else None
        own = self.own_model(ask.t)
        further = {n: p.accuracy(self.shared(w, ask.spec)) for n, w in ask.models.items()}
        return ScoreReply(
            n=p.n_test,
            accuracy=shared if own is None else p.accuracy(own),
            accuracy_global=shared,
            accuracies={name: value for name, value in further.items() if value is not None},
        )

    @final
    def trained(self, request: D) -> Reply:
        """Round t's local work as it is sent: with noise where [privacy] says so."""
        return private(
            self.participant, self.shared_spec, request, self._with_costs(self.train, request)
        )

    @final
    def trained_second(self, request: Request) -> Reply:
        """``second``, as it is sent."""
        return self._with_costs(self.second, request)

    def _with_costs(self, work: Callable[[Q], Reply], request: Q) -> Reply:
        """What ``work`` makes of ``down``; with what it cost, where the run asks for that."""
        run, told = self.config.run, {}
        if run.memory:
            _ = self.participant.train_set  # what a process keeps is not of the first message alone
        with costs.counting(run.flops) as spent, costs.following(run.memory) as held:
            reply = work(request)
        if run.flops:
            told[costs.FLOPS] = float(spent.total)
        if run.memory:
            told[costs.MEMORY] = float(held.most + sum(t.nbytes for _, t in tensors(request)))
        return reply.model_copy(update={"metrics": {**reply.metrics, **told}}) if told else reply

    def _refuse(self, what: str) -> None:
        """Raise ``ValueError`` if the client was asked for ``what``, which has no noise."""
        if self.config.privacy.mode == "local":
            raise ValueError(f'privacy.mode = "local": a client sends no {what}')

    @final
    def scored(self, ask: ScoreRequest) -> ScoreReply:
        """``score``, unless the server may not have it."""
        self._refuse("scores")
        return self.score(ask)

    @final
    def measure(self, asked: StatisticsRequest) -> StatisticsReply:
        """What the BatchNorm layers of the server's models see of the client's training data."""
        p, found = self.participant, {}
        self._refuse("statistics")
        for name, w in asked.models.items():
            net = p.model(asked.specs[name], w)
            found[name] = p.statistics(asked.t, net, by_batch=asked.by_batch)
        return StatisticsReply(n=p.n, models=found)


def private(participant: Participant, spec: str, request: object, reply: U) -> U:
    """What client k sends in place of ``up``, trained in ``spec`` from what ``down`` brought.

    Under ``privacy.mode = "local"`` the server is not trusted with updates: this one is bounded and
    gets its noise here, with the key in the client's own folder. Raises ``ValueError`` if it holds
    more than the weights.
    """
    config = participant.config
    o = config.privacy
    if o.mode != "local":
        return reply
    if reply.__class__.model_fields.keys() != ModelReply.model_fields.keys():
        raise ValueError(f'privacy.mode = "local" is for copies of one model, not {reply.kind}')
    assert isinstance(request, ModelRequest) and isinstance(reply, ModelReply)
    parameters = tree.parameters_only(participant.model(spec, request.w))
    names = averaged(request.w, parameters, buffers=config.average.bn_buffers)
    update = clipped(flattened(reply.w, names) - flattened(request.w, names), o.clip)
    update = noised(update, o.noise_multiplier * o.clip, participant.secret, request.t)
    return reply.model_copy(update={"metrics": {}, "w": moved(request.w, names, update)})
