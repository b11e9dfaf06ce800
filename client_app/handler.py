"""Base class of a method's client half: the work of participant k for each type of message."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, TypeVar, cast, final

from client_app.fine_tuning import fine_tuned
from client_app.participant import Participant
from client_app.secure import Masking
from common import models
from common.exchange import tree
from common.exchange.protocol import (
    FINE_TUNED,
    CensusRequest,
    ClientInfo,
    FineTunedScoreReply,
    MaskedReply,
    ModelReply,
    ModelRequest,
    Reply,
    Request,
    ScoreReply,
    ScoreRequest,
    StatisticsReply,
    StatisticsRequest,
    UnmaskReply,
    UnmaskRequest,
    parameter,
)
from common.exchange.records import StateDict, tensors
from common.exchange.seal.body import hashed
from common.exchange.seal.session import config_digest
from common.keys import decisive
from common.models.adapters import adaptations
from common.models.classifier import Classifier
from common.models.peft_folders import write_one
from common.names import version_of
from common.settings.config import Config, MethodOptions, Value, listed
from common.settings.plugins import OF_FOLDER, network
from common.techniques.privacy import averaged, clipped, flattened, moved, noised
from common.training import costs
from common.training.task import Result

log = logging.getLogger("flwr.fedmosaic")

O = TypeVar("O", bound=MethodOptions)  # noqa: E741 - a method's options
D = TypeVar("D", bound=Request)
Q = TypeVar("Q", bound=Request)
U = TypeVar("U", bound=Reply)


class Handler(ABC, Generic[O, D]):
    """Client half of a method, created anew for every message.

    State for later messages is saved with ``participant.save_state``.
    """

    request_type: ClassVar[type[Request]]
    """Type of the request that starts a round; by default the one in the parameters of the class's
    bases."""
    second_request_type: ClassVar[type[Request] | None] = None
    """Type of the request of a second exchange; None if the method has one exchange in a round."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "request_type" not in vars(cls) and (kind := parameter(cls, Request)):
            cls.request_type = kind

    def __init__(self, participant: Participant) -> None:
        self.participant, self.task = participant, participant.task
        self.config = participant.config
        self.options = cast("O", participant.config.method)

    @classmethod
    def trains_own(cls, config: Config) -> bool:
        """Return whether a client trains its own architecture, or only the global one."""
        return True

    @property
    def spec(self) -> str:
        """Architecture that this client trains."""
        return self.participant.spec

    @property
    def size(self) -> float:
        """Share of the global model's entries that this client trains, in (0, 1]."""
        return 1.0

    @property
    def shared_spec(self) -> str:
        """Architecture of the global model that this client scores."""
        return self.participant.global_spec

    @property
    def n_test(self) -> int:
        """Number of samples on which this client scores models."""
        return self.participant.n_test

    def admit(self) -> None:
        """Raise ``ValueError`` if this client cannot take part in the method."""

    def public(self) -> str:
        """Return the fingerprint of this client's public set; empty if the method has none."""
        return ""

    def hello(self, hello: CensusRequest) -> ClientInfo:
        """Return the census entry of this client; first delete its state if the server says so.

        Under ``privacy.mode = "local"`` it hides sample counts and names all classes. Raises
        ``ValueError`` if the client cannot take part.
        """
        p, task = self.participant, self.task
        if hello.clients and p.clients != hello.clients:
            raise ValueError(f"this client expects {p.clients} clients, the server {hello.clients}")
        if answered := p.ledger.check(hello.experiment, hello.t, self.config.privacy.local_noise):
            log.info("client %d: %s", p.k, answered)
        if hello.forget:
            p.forget()
        if log.isEnabledFor(logging.WARNING) and not hello.t:  # not on loopback
            for line in p.describe_data():
                log.warning("client %d reads %s", p.k, line)
        models.check(p.spec, task.shape, task.num_classes, stem=task.stem)
        self.admit()
        shares = self.config.run.share_counts and task.objective.has_counts
        info = ClientInfo(
            n=p.n,
            targets=p.targets if self.config.average.weights == "tokens" else 0,
            n_test=self.n_test,
            model=self.spec,
            size=self.size,
            classes=[] if task.objective.every else [c for c, n in enumerate(p.counts) if n],
            counts=p.counts if shares else None,
            task=task.fingerprint_with(self.spec),
            public=self.public(),
            version=version_of(self.config),
            tags=listed(str(p.node.get("tags", ""))),
            name=str(p.node.get("name", "")),
            clients=p.clients,
        )
        if self.config.secure.on:
            info = info.model_copy(update=Masking(p, hello.experiment).introduce())
        if self.config.privacy.mode != "local":
            return info
        classes = list(range(task.num_classes))
        return info.model_copy(update={"n": 1, "n_test": 0, "classes": classes, "counts": None})

    @abstractmethod
    def train(self, request: D) -> Reply:
        """Train on the local data in round t and return the reply."""

    def trained_from(self, request: D) -> StateDict:
        """Return the weights before the training of ``request``, at least those of the reply.

        Under [secure] all clients of a round must have the same.
        """
        assert isinstance(request, ModelRequest), "a method that averages updates"
        return request.w

    def second(self, request: Request) -> Reply:
        """Return the reply of the second exchange of round t, which follows the server's step."""
        raise ValueError(f"{type(self).__name__} has no second exchange in a round")

    def own_model(self, t: int) -> Classifier | None:
        """Return the client's own network after round t; None if it has only the global model."""
        return None

    def shared(self, w: StateDict, spec: str) -> Classifier:
        """Return the network with weights ``w`` that the client scores as the global model.

        ``spec``: the architecture that the server names; empty: ``shared_spec``. The network is
        valid until the next call, which may overwrite it.
        """
        return self.task.cached_network(spec or self.shared_spec, w)

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        """Return the network that the client scores for one of the request's models.

        ``w``: weights of a network by default. A method may score another predictor, such as the
        prototypes ``w`` on the client's features. The network is valid until the next call.
        """
        return self.shared(w, request.spec)

    def score(self, request: ScoreRequest) -> ScoreReply:
        """Return the accuracies of the client's own and the global model on its test samples."""
        p = self.participant
        shared = p.result(self.to_score(request, request.w)) if request.w is not None else None
        own = self.own_result(request, shared)
        further = {n: p.score(self.to_score(request, w)) for n, w in request.models.items()}
        return self.scores(request, own, shared, further)

    def final_model(self, request: ScoreRequest) -> Classifier:
        """Return the network with which this client predicts: its own, or else the global one.

        ``request``: that of the scores after the round. Raises ``ValueError`` if the client has no
        network of its own and the request has none.
        """
        if (net := self.own_model(request.t)) is not None:
            return net
        if request.w is None:
            raise ValueError(
                f"client {self.participant.k} has no model of its own with method = "
                f"{self.config.run.method!r}; it needs the server's weights"
            )
        return self.to_score(request, request.w)

    def own_result(self, request: ScoreRequest, shared: Result | None) -> Result | None:
        """Return the scores of the client's own model, or those of the global one (``shared``)."""
        net = self.own_model(request.t)
        return shared if net is None else self.participant.result(net)

    @final
    def scores(
        self,
        request: ScoreRequest,
        own: Result | None,
        shared: Result | None,
        further: Mapping[str, float | None],
    ) -> ScoreReply:
        """Return the reply with the scores of the client's own, the global and further models.

        None: there is no such model, or there are no test samples.
        """
        learnt, counts = self.task.objective, request.confusion and self.config.run.share_counts
        fields: dict[str, object] = {"accuracy": None, "accuracy_global": None}
        if learnt.one_each:
            fields = {"accuracy": own and own.score, "accuracy_global": shared and shared.score}
        else:
            results = {"measures": own, "measures_global": shared}
            fields |= {name: dict(of.measures) for name, of in results.items() if of}
        if own and counts:
            fields["confusion" if learnt.one_each else "sums"] = learnt.sums(own.outputs, own.y)
        reply = ScoreReply.model_validate({"n": self.n_test, **fields})
        return self._with_further(reply, further if self.n_test else {})

    def _with_further(self, reply: ScoreReply, scores: Mapping[str, float | None]) -> ScoreReply:
        """Return ``reply`` with the primary scores of further models."""
        field, values = self.task.objective.by_model(scores)
        return reply.model_copy(update={field: {**getattr(reply, field), **values}})

    @final
    def trained(self, request: D) -> Reply:
        """Return the reply of ``train`` with costs added, and with noise if [privacy] is local."""
        self.participant.keep_since(request.oldest)
        self.participant.limit = request.steps
        return private(
            self.participant, self.shared_spec, request, self._with_costs(self.train, request)
        )

    @final
    def trained_second(self, request: Request) -> Reply:
        """Return the reply of ``second`` with costs added.

        Raises ``ValueError`` under ``privacy.mode = "local"``.
        """
        self._refuse("second reply in a round")
        self.participant.limit = request.steps
        return self._with_costs(self.second, request)

    @final
    def add_masks(self, request: D, reply: Reply, settings: Mapping[str, Value]) -> MaskedReply:
        """Return the reply of ``trained`` with masks, for a secure sum; ``settings``: of the run.

        Its context has everything of the request but the weights, which may come in parts.
        """
        assert isinstance(reply, ModelReply), "a method that averages updates"
        p, before = self.participant, self.trained_from(request)
        told = b"" if request.secure is None else request.secure.numpy().tobytes()
        left_out: dict[str, object] = {"secure": None}
        if isinstance(request, ModelRequest):
            left_out["w"] = {}
        rest = b"".join(request.model_copy(update=left_out).pieces())
        job = hashed([rest, config_digest(decisive(settings)).encode()])
        return Masking(p, request.experiment).masked(told, job, before, reply, p.weight)

    @final
    def remove_masks(self, request: UnmaskRequest) -> UnmaskReply:
        """Return what removes the masks of a secure sum."""
        return Masking(self.participant, request.experiment).unmask(request)

    def _with_costs(self, work: Callable[[Q], Reply], request: Q) -> Reply:
        """Return ``work(request)``, with FLOPs (``run.flops``) and bytes (``run.memory``)."""
        run, cost, base = self.config.run, {}, 0
        if run.memory:
            # A process keeps the data, so the first message must not be charged for loading it.
            _ = self.participant.train_set
            base = self.task.frozen_bytes(self.participant.spec)  # every message needs it
        with costs.counting(run.flops) as flops, costs.following(run.memory) as memory:
            reply = work(request)
        if run.flops:
            cost[costs.FLOPS] = float(flops.total)
        if run.memory:
            sent = sum(t.nbytes for _, t in tensors(request))
            cost[costs.MEMORY] = float(base + memory.most + sent)
        return reply.model_copy(update={"metrics": {**reply.metrics, **cost}}) if cost else reply

    def _refuse(self, what: str) -> None:
        """Raise ``ValueError`` under ``privacy.mode = "local"``, because ``what`` has no noise."""
        if self.config.privacy.mode == "local":
            raise ValueError(f'privacy.mode = "local": a client sends no {what}')

    @final
    def scored(self, request: ScoreRequest) -> ScoreReply:
        """Return ``score(request)``, with ``finetune.epochs`` also the score after fine-tuning.

        Raises ``ValueError`` under ``privacy.mode = "local"``.
        """
        self._refuse("scores")
        reply = self.score(request)
        if request.t == self.config.run.rounds:
            self._write_adapter(request.t)
        return self._with_fine_tuning(request, reply) if self.config.fine_tunes else reply

    def _write_adapter(self, t: int) -> None:
        """Write the adapter of the client's own network beside its state, if peft can load it."""
        if network(self.spec) != OF_FOLDER or (net := self.own_model(t)) is None:
            return
        if any(adaptations(net)):
            with contextlib.suppress(OSError):  # a full disk: the state has the adapter too
                write_one(self.participant.folder / "adapter", net)

    def _with_fine_tuning(self, request: ScoreRequest, reply: ScoreReply) -> FineTunedScoreReply:
        """Return ``reply`` with the score and the costs of a fine-tuned copy.

        The copy is of the client's own model, or of the global one if the client has none.
        """
        p, metrics = self.participant, dict[str, float]()
        if p.n_test:
            net = self.own_model(request.t)
            if net is None:
                assert request.w is not None, "a method with neither own nor global models"
                net = self.to_score(request, request.w)
            run = self.config.run
            with costs.counting(run.flops) as flops, costs.following(run.memory) as memory:
                tuned, metrics = fine_tuned(p, request.t, net)
            metrics |= {costs.FLOPS: float(flops.total)} if run.flops else {}
            metrics |= {costs.MEMORY: float(memory.most)} if run.memory else {}
            reply = self._with_further(reply, {FINE_TUNED: p.score(tuned)})
        scores = {name: getattr(reply, name) for name in reply.model_fields_set}
        return FineTunedScoreReply.model_validate({**scores, "metrics": metrics})

    @final
    def measure(self, request: StatisticsRequest) -> StatisticsReply:
        """Return the statistics of the models' BatchNorm layers on the client's training data."""
        p, statistics = self.participant, {}
        self._refuse("statistics")
        if self.config.secure.on:
            raise ValueError('secure.mode = "on": a client sends no statistics')
        for name, w in request.models.items():
            net = p.model(request.specs[name], w)
            statistics[name] = p.statistics(request.t, net, by_batch=request.by_batch)
        return StatisticsReply(n=p.n, models=statistics)


def private(participant: Participant, spec: str, request: object, reply: U) -> U:
    """Return ``reply``; under ``privacy.mode = "local"`` with its update clipped and noised.

    ``spec``: the architecture that was trained from the weights in ``request``. The server is not
    trusted with the update, so the client adds the noise, with the key in its own folder. Raises
    ``ValueError`` if the reply has other fields than the weights.
    """
    config = participant.config
    o = config.privacy
    if o.mode != "local":
        return reply
    if reply.__class__.model_fields.keys() != ModelReply.model_fields.keys():
        raise ValueError(f'privacy.mode = "local" allows weights only, not {reply.kind}')
    assert isinstance(request, ModelRequest) and isinstance(reply, ModelReply)
    parameters = tree.parameters_only(participant.task.without_values(spec))
    before = tree.cut(request.w, reply.w)
    names = averaged(before, parameters, buffers=config.average.bn_buffers)
    update = clipped(flattened(reply.w, names) - flattened(before, names), o.clip)
    update = noised(update, o.noise_multiplier * o.clip, participant.secret, request.t)
    return reply.model_copy(update={"metrics": {}, "w": moved(before, names, update)})
