"""Base classes of server halves with global weights: one model, or one for each architecture."""

import math
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import ClassVar, cast

from torch import Tensor

from common import seeds
from common.data import divide
from common.data.shares import check_public_tests
from common.exchange import tree
from common.exchange.protocol import ModelRequest, Request
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.models.offloaded import OffloadedModel
from common.settings.config import not_allowed
from common.settings.options import KRUM
from common.techniques.widths import Submodel
from server_app.aggregation.cached import Uploads
from server_app.aggregation.calibration import Cache
from server_app.aggregation.depth import Depth
from server_app.aggregation.matching import Matching, Same, T
from server_app.aggregation.matching import State as MatchedState
from server_app.aggregation.optimizer import Moments
from server_app.aggregation.privacy import NoisyMean
from server_app.aggregation.robust import byzantine, check_count
from server_app.aggregation.width import Width
from server_app.method import Client, Method, Metrics, Models, O, Replies, U


class Weights(Records, kind="global_model.Weights"):
    """State of a method with a global model and nothing else."""

    w: StateDict
    moments: dict[str, Moments] = {}
    """Moments of the server's optimizer by architecture; empty without one."""


class GlobalModel(Method[O, U], ABC):
    """Base class: sends and scores the global weights w of the architecture ``global_spec``.

    A method with more state declares it in ``state_type``. ``net`` is the network to compute with.
    It takes no memory during an exchange; the next access restores it with the weights w.
    """

    state_type: ClassVar[type[Records]] = Weights
    moments: dict[str, Moments] = {}  #: as in the state; never modified in place

    def prepare(self) -> None:
        super().prepare()
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    @property
    def net(self) -> Classifier:
        if self._offloaded.restore():
            self._offloaded.net.load_state_dict(self.w)
        return self._offloaded.net

    @net.setter
    def net(self, net: Classifier) -> None:
        self._offloaded = OffloadedModel(net)

    @property
    def parameter_names(self) -> frozenset[str]:
        """Names of the entries of w that are parameters, not buffers."""
        return tree.parameters_only(self._offloaded.net)

    def release_memory(self) -> None:
        super().release_memory()
        self._offloaded.release()

    def request(self, t: int) -> Request | Callable[[Client], Request]:
        return ModelRequest(w=self.w)

    def model(self) -> Classifier | None:
        self.net.load_state_dict(self.w)
        return self.net

    def predicted(self, x: Tensor) -> Tensor:
        """Return the probabilities f(w; x) [n, classes] for samples x [n, C, ...], on the CPU."""
        self.net.load_state_dict(self.w)
        return self.task.objective.shares(self.task.logits(self.net, x))


MATCHINGS: dict[str, type[Matching]] = {
    "layerwise": Depth,
    "depth": Depth,
    "same": Same,
    "width": Width,
}
"""Matching of the clients' networks by the value of ``average.across``."""


class GlobalModels(GlobalModel[O, T], ABC):
    """Base class: the global models of an averaging method, and what it sends, scores and saves.

    The settings choose the parts of its mean: ``matching`` of entries if every client trains its
    own architecture (``average.across``), ``uploads``, from which ŵ is combined (OCA), ``private``,
    the noisy mean. The round is in ``methods/fedavg.py``.
    """

    matching: Matching | None = None  #: None if all clients train one global model
    uploads: Uploads[T] | None = None  #: every client's latest upload; None without OCA
    overall: Models = {}  #: ŵ, combination of the uploads, by architecture; empty without OCA
    private: NoisyMean | None = None  #: None without differential privacy
    t: int = 0  #: the round of the last step

    def prepare(self) -> None:
        super().prepare()
        config, run = self.config, self.config.run
        if config.average.across != "none":
            self.matching = MATCHINGS[config.average.across](self.task)
        if config.oca.aggregate == "on":
            kind = cast("type[T]", self.reply_type)
            self.uploads = Uploads(kind, Path(run.out), config.oca.in_memory, run.keep)
            self.student_name, self.name, self.overall = self.name, "oca", self.models
        if config.privacy.on:
            self.private = NoisyMean(config)
        if config.buffer.cache:
            self.cache = Cache(Path(run.out), run.keep)
        optimizer = config.average.server_optimizer
        if optimizer != "none" and "moments" not in self.state_type.model_fields:
            why = "a state that is not derived from server_app.global_model.Weights"
            raise not_allowed("average.server-optimizer", optimizer, why, "none")

    # Membership.

    def begin(self, clients: Sequence[Client]) -> None:
        """Set the clients, and the models of their architectures.

        Raises ``Stopped`` if a round may have too few replies for Krum, ``ValueError`` if FLTrust's
        public set has test images, or if the architectures do not match.
        """
        if self.matching is not None:
            self.check_sizes(clients)
        super().begin(clients)
        if self.config.average.robust == "fltrust":
            check_public_tests(self.config.data, self.roster_size, self.config.partition_seed)
        self.check_enough(clients)
        self.check_architectures()
        if self.matching is None:
            return
        self.matching.begin(self.architectures(), self.build)
        self.main = self.matching.main
        if self.models:
            self.matching.check_models()
        else:
            self.begin_models(self.initial_models())

    def check_architectures(self) -> None:
        """Raise ``ValueError`` if the architectures of the roster do not suit the method."""

    def begin_models(self, models: Models) -> None:
        """Set the initial models, and ŵ before the first upload."""
        self.models = models
        self.overall = models if self.uploads is not None else {}

    def admit(self, client: Client) -> None:
        super().admit(client)
        if self.matching is not None:
            self.check_known(client)

    def check_enough(self, clients: Sequence[Client]) -> None:
        run, average = self.config.run, self.config.average
        if average.robust not in KRUM:
            return
        selected = min(self.config.replies(len(clients)), len(clients))
        absent = len(clients) - math.ceil(run.min_replies * selected - 1e-9)
        most = selected if self.uploads is None else len(clients)
        for spec, n in sorted(Counter(self.trains(client) for client in clients).items()):
            for replies in range(max(n - absent, 1), min(n, most) + 1):
                where = f" in a round with {replies} clients of {spec}"
                check_count(replies, byzantine(replies, average.trim), where)

    # A round.

    def requests(self, t: int) -> Request | Callable[[Client], Request]:
        """Return a function that gives clients with equal payloads one object, to pack it once."""
        sent, matching, models = self.request(t), self.matching, self.models
        if matching is None:
            return sent
        payloads: dict[tuple[int, Submodel], tuple[Request, Request]] = {}

        def to(client: Client) -> Request:
            payload = sent(client) if callable(sent) else sent
            submodel = matching.submodel(client, t)._replace(classes=None)
            if (key := (id(payload), submodel)) not in payloads:
                w = matching.entries(models, submodel)
                payloads[key] = payload, self.own_request(client, payload, w)
            return payloads[key][1]

        return to

    def own_request(self, client: Client, sent: Request, w: StateDict) -> Request:
        """Return the request for a client whose own architecture has the weights ``w``."""
        return sent.model_copy(update={"w": w})

    def check(self, client: Client, reply: T) -> None:
        spec = self.trains(client)
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def states(
        self, replies: Replies[T], previous: StateDict, parameters: Set[str]
    ) -> Iterable[StateDict]:
        """Return the state dicts to average; ``previous``: the model before the round."""
        states = (reply.w for _, reply in replies)
        return list(states) if replies.in_memory else states

    def trusted(self, spec: str, previous: StateDict, sizes: Sequence[int]) -> StateDict | None:
        """Return the parameters that the server trains from ``previous``; None without FLTrust.

        It minimises the loss on the labelled public set by [train], in as many steps as the
        client with the (lower) median of ``sizes`` takes.
        """
        if self.config.average.robust != "fltrust":
            return None
        task, divided = self.task, divide(self.config.data, self.config.partition_seed)
        assert divided.public is not None and divided.labels is not None, "checked by Averaging"
        net = self.build(spec, previous).train()
        batches = task.batches(divided.public, divided.labels, "trusted", spec, self.t)
        steps = batches.take(task.steps(sorted(sizes)[(len(sizes) - 1) // 2]))
        with seeds.scope(task.seed, "trusted", spec, self.t):
            task.fit(self.t, net.parameters(), steps, lambda x, y: task.objective.loss(net(x), y))
        return tree.cut(tree.snapshot(net), sorted(tree.parameters_only(net)))

    def refine(self, t: int, replies: Replies[T], models: Models) -> tuple[Models, Metrics]:
        """Return the final models and metrics from the combination of ``replies``.

        A method may distil the models here. ``replies``: as the clients sent them
        (``Replies.as_sent``).
        """
        return models, {}

    def after(self, t: int, replies: Replies[T]) -> Metrics:
        """Do further work after the combination of round t's uploads, and return its metrics.

        ``replies``: as the clients sent them.
        """
        return {}

    def cached(self, reply: T) -> T:
        """Return the part of an upload that a later combination needs."""
        return reply.model_copy(update={"metrics": {}})

    def latest(self, t: int, replies: Replies[T], uploads: Uploads[T]) -> Replies[T]:
        """Add round t's replies to the cache, and return every client's latest upload.

        A client without an upload is left out, or has the initial model if ``oca.init = "w0"``.
        """
        uploads.put(t, [(client.k, self.cached(reply)) for client, reply in replies])
        fill = self.config.oca.init == "w0"
        first = self.initial_models() if fill else {}

        def load(client: Client) -> T:
            if client.k in uploads:
                return uploads.get(client.k)
            return uploads.kind.model_construct(w=self.start(first, client))

        return Replies([c for c in self.clients if fill or c.k in uploads], load)

    # The models, and the parts that clients train.

    @property
    def models(self) -> Models:
        """Combination of the active clients' uploads (ACA), by architecture."""
        return {self.global_spec: self.w} if self.matching is None else self.matching.models

    @models.setter
    def models(self, models: Models) -> None:
        if self.matching is None:
            self.w = models[self.global_spec]
        else:
            self.matching.models = models

    @property
    def trained_names(self) -> Set[str]:
        """Names of the parameters of all global models."""
        return self.parameter_names if self.matching is None else self.matching.parameter_names

    def initial_models(self) -> Models:
        """Return the initial models."""
        if self.matching is None:
            return {self.global_spec: self.initial(self.global_spec)}
        return self.matching.initial(self.initial)

    def initial(self, spec: str) -> StateDict:
        """Return the initial weights of the global model of one architecture."""
        return tree.snapshot(self.build(spec))

    def by_architecture(self, models: Models) -> Models:
        """Return the weights that each architecture trains and scores, smallest first."""
        return models if self.matching is None else self.matching.by_architecture(models)

    def merged(self, models: Models) -> StateDict:
        """Return all weights of the global models as one state dict."""
        return models[self.global_spec] if self.matching is None else self.matching.merged(models)

    def trains(self, client: Client) -> str:
        """Return the architecture that a client trains."""
        return self.global_spec if self.matching is None else client.architecture

    def training(self, spec: str) -> Callable[[Client], bool]:
        """Return whether a client trains the architecture ``spec``, as a function of the client."""
        return lambda client: self.trains(client) == spec

    def start(self, models: Models, client: Client) -> StateDict:
        """Return the weights from which a client starts its training."""
        spec = self.global_spec if self.matching is None else client.architecture
        return self.by_architecture(models)[spec]

    def current(self, client: Client, t: int) -> StateDict:
        if self.matching is None:
            return self.start(self.models, client)
        return self.matching.entries(self.models, self.matching.submodel(client, t))

    def uploaded(self, t: int) -> StateDict:
        return self.w

    # What is scored.

    student_name: str = ""  #: name of ``student`` under OCA

    def student(self) -> StateDict | None:
        """Return the weights of a network that learnt from w and is scored in its place.

        It has the method's ``name``, and w then has the name "teacher". None without one.
        """
        return None

    def classifiers(self, models: Models) -> dict[str, Classifier]:
        """Return the networks with the weights ``models``, smallest first."""
        networks = {}
        for spec, w in self.by_architecture(models).items():
            networks[spec] = self.net if self.matching is None else self.matching.nets[spec]
            networks[spec].load_state_dict(w)
        return networks

    def networks(self) -> dict[str, Classifier]:
        return {} if self.matching is None else self.classifiers(self.overall or self.models)

    def model(self) -> Classifier | None:
        scored = self.overall or self.models
        if not self.overall and (student := self.student()) is not None:
            scored = {self.global_spec: student}
        return next(reversed(self.classifiers(scored).values()), None)

    def further(self) -> dict[str, Models]:
        """Return the ACA model under OCA, the student under OCA, and the student's teacher."""
        further, student = {}, self.student()
        if self.uploads is not None:
            further["aca"] = self.by_architecture(self.models)
            if student is not None:
                further[self.student_name] = {self.global_spec: student}
        return further if student is None else {**further, "teacher": self.models}

    def weights_to_score(self) -> StateDict | None:
        student = self.student() if self.uploads is None else None
        return self.merged(self.overall or self.models) if student is None else student

    def measured_by(self, name: str) -> Sequence[Client]:
        matching = self.matching
        return self.clients if matching is None else matching.measured_by(self.clients, name)

    # Checkpoints.

    def state(self) -> Records:
        state = super().state()
        if self.matching is not None:
            own = {name: value for name, value in state if name != "w"}
            state = MatchedState(models=self.models, inner=own)
        if self.cache is not None:
            state = self.cache.state(dict(state))
        return state if self.uploads is None else self.uploads.state(dict(state), self.overall)

    def restore(self, state: Mapping[str, object]) -> None:
        if self.uploads is not None:
            state, self.overall = self.uploads.restore(state)
        if self.cache is not None:
            state = self.cache.restore(state)
        if self.matching is not None:
            kept = MatchedState.model_validate(state)
            self.models = dict(kept.models)
            state = {"w": self.w, **kept.inner}
        super().restore(state)
