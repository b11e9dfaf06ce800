"""Base classes of server halves with a global model: ``GlobalModel`` and ``Averaged``.

``Averaged`` averages the models that clients trained; a method overrides the combination or a later
step. The classes in ``aggregation/`` derive from it too and extend a method: they average across
architectures, or over the cached uploads of all clients (OCA). In ``PredictorPart`` the mean is no
model by itself.
"""

import math
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from common.data import divide
from common.data.shares import check_public_tests
from common.exchange.protocol import ModelReply, ModelRequest, Request
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.models.offloaded import OffloadedModel
from common.settings.config import not_allowed
from common.settings.options import KRUM
from common.techniques.widths import Submodel
from common.training import seeds, tree
from server_app.aggregation.mean import average
from server_app.aggregation.optimizer import Moments, step
from server_app.aggregation.privacy import NoisyMean
from server_app.aggregation.robust import check_count, liars
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
        """Return softmax f(w; x) [n, classes] for samples x [n, C, ...], on the CPU."""
        self.net.load_state_dict(self.w)
        return torch.softmax(self.task.logits(self.net, x), dim=1)


T = TypeVar("T", bound=ModelReply)


class Averaged(GlobalModel[O, T], ABC):
    """Base class of averaging methods: w ← Σ_{k∈S_t} p_k w_k by the settings of [average].

    There is one global model, or one for each architecture (``average.across``).
    """

    overall: Models
    """Combination of all clients' latest uploads (OCA); empty without OCA."""
    private: NoisyMean | None = None  #: the noisy mean; None without differential privacy
    widest: bool = False
    """Whether the widest network is ``main`` (``average.across = "width"``)."""
    by_width: bool = False
    """Whether p_k of convolutions includes the client's channels (``average.across = "width"``)."""

    def prepare(self) -> None:
        super().prepare()
        self.begin_overall()
        if self.config.privacy.on:
            self.private = NoisyMean(self.config)
        optimizer = self.config.average.server_optimizer
        if optimizer != "none" and "moments" not in self.state_type.model_fields:
            why = "a state that is not derived from server_app.global_model.Weights"
            raise not_allowed("average.server-optimizer", optimizer, why, "none")

    def begin(self, clients: Sequence[Client]) -> None:
        """Set the clients; raise ``Stopped`` if a round may have too few replies for Krum.

        Raises ``ValueError`` if FLTrust's public set has test images.
        """
        super().begin(clients)
        if self.config.average.robust == "fltrust":
            check_public_tests(self.config.data, self.roster_size, self.config.partition_seed)
        self.check_enough(clients)

    def check_enough(self, clients: Sequence[Client]) -> None:
        run, average = self.config.run, self.config.average
        if average.robust not in KRUM:
            return
        selected = min(run.per_round or len(clients), len(clients))
        absent = len(clients) - math.ceil(run.min_replies * selected - 1e-9)
        most = len(clients) if self.overall else selected
        for spec, n in sorted(Counter(self.trains(client) for client in clients).items()):
            for replies in range(max(n - absent, 1), min(n, most) + 1):
                where = f" in a round with {replies} clients of {spec}"
                check_count(replies, liars(replies, average.trim), where)

    def begin_overall(self) -> None:
        """Set ŵ before the first upload; empty without OCA."""
        self.overall = self.models if self.config.oca.aggregate == "on" else {}

    def select(self, t: int) -> list[Client]:
        if self.private is None or self.config.privacy.sampling == "public":
            return super().select(t)
        members = {client.k: client for client in self.clients}
        return [members[k] for k in self.private.selected(t, self.roster_size) if k in members]

    @property
    def models(self) -> Models:
        """Combination of the active clients' uploads (ACA), by architecture."""
        return {self.global_spec: self.w}

    @models.setter
    def models(self, models: Models) -> None:
        self.w = models[self.global_spec]

    def check(self, client: Client, reply: T) -> None:
        spec = self.trains(client)
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def update_counts(self, w: StateDict) -> dict[str, Tensor]:
        """Return the counts of updates by entry of w, which the mean of this round increases.

        Entries that it lacks get the plain mean; for ``average.across = "width"``.
        """
        return {}

    # A round.

    def step(self, t: int, replies: Replies[T]) -> Metrics:
        self.t = t
        previous = self.models
        combined = self.optimized(previous, self.aggregate(replies, previous))
        self.models, metrics = self.refine(t, replies, combined)
        return {**metrics, **self.after(t, replies)}

    def optimized(self, previous: Models, mean: Models) -> Models:
        """Return the models after the step of the server's optimizer, if there is one.

        ``previous``: the models before the round; ``mean``: the combination of the uploads.
        """
        if self.config.average.server_optimizer == "none":
            return mean
        names, stepped = self.trained_names, dict(mean)
        for spec, w in mean.items():
            moments = self.moments.get(spec, {})
            stepped[spec], kept = step(self.config.average, previous[spec], w, moments, names)
            self.moments = {**self.moments, spec: kept}
        return stepped

    @property
    def trained_names(self) -> Set[str]:
        """Names of the parameters of all global models."""
        return self.parameter_names

    def aggregate(self, replies: Replies[T], previous: Models) -> Models:
        """Return the combination of the uploads; ``previous``: the models before the round."""
        return {spec: self.combine(replies, w) for spec, w in previous.items()}

    def combine(self, replies: Replies[T], previous: StateDict) -> StateDict:
        """Return the new w of one architecture from its uploads.

        Under differential privacy there may be no upload, otherwise there is at least one.
        """
        names = self.parameter_names
        states = self.states(replies, previous, names)
        if self.private is not None:
            return self.private.mean(self.t, states, previous, names, self.roster_size)
        trusted = self.trusted(self.global_spec, previous, replies.sizes)
        return average(states, replies.sizes, previous, self.config.average, names, trusted)

    def trusted(self, spec: str, previous: StateDict, sizes: Sequence[int]) -> StateDict | None:
        """Return the parameters that the server trains from ``previous``; None without FLTrust.

        It minimises cross-entropy on the labelled public set by [train], in as many steps as the
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
            task.fit(self.t, net.parameters(), steps, lambda x, y: F.cross_entropy(net(x), y))
        return tree.cut(tree.snapshot(net), sorted(tree.parameters_only(net)))

    def states(
        self, replies: Replies[T], previous: StateDict, parameters: Set[str]
    ) -> Iterable[StateDict]:
        """Return the state dicts to average; ``previous``: the model before the round."""
        states = (reply.w for _, reply in replies)
        return list(states) if replies.in_memory else states

    def refine(self, t: int, replies: Replies[T], models: Models) -> tuple[Models, Metrics]:
        """Return the final models and metrics from the combination of ``replies``.

        A method may distil the models here.
        """
        return models, {}

    def after(self, t: int, replies: Replies[T]) -> Metrics:
        """Do further work after the combination of round t's uploads, and return its metrics."""
        return {}

    def cached(self, reply: T) -> T:
        """Return the part of an upload that a later combination needs."""
        return reply.model_copy(update={"metrics": {}})

    # The models, and the parts that clients train.

    def initial_models(self) -> Models:
        """Return the initial models."""
        return {self.global_spec: self.initial(self.global_spec)}

    def initial(self, spec: str) -> StateDict:
        """Return the initial weights of the global model of one architecture."""
        return tree.snapshot(self.build(spec))

    def by_architecture(self, models: Models) -> Models:
        """Return the weights that each architecture trains and scores, smallest first."""
        return models

    def merged(self, models: Models) -> StateDict:
        """Return all weights of the global models as one state dict."""
        return models[self.global_spec]

    def network(self, spec: str) -> Classifier:
        """Return the network of an architecture on the server's device, with any weights."""
        return self.net

    def classifiers(self, models: Models) -> dict[str, Classifier]:
        """Return the networks with the weights ``models``, smallest first."""
        networks = {}
        for spec, w in self.by_architecture(models).items():
            networks[spec] = self.network(spec)
            networks[spec].load_state_dict(w)
        return networks

    def weights_to_score(self) -> StateDict | None:
        return self.merged(self.models)

    def trains(self, client: Client) -> str:
        """Return the architecture that a client trains."""
        return self.global_spec if self.config.average.across == "none" else client.architecture

    def start(self, models: Models, client: Client) -> StateDict:
        """Return the weights from which a client starts its training."""
        return self.by_architecture(models)[self.trains(client)]

    def own_request(self, client: Client, sent: Request, w: StateDict) -> Request:
        """Return the request for a client whose own architecture has the weights ``w``."""
        return sent.model_copy(update={"w": w})

    def submodel(self, client: Client, t: int) -> Submodel:
        """Return the client's part of the widest network in round t, for ``across = "width"``."""
        return Submodel(self.trains(client))


class PredictorPart(Averaged[O, T], ABC):
    """Base class of methods whose mean w is a part of every client's predictor, and no model alone.

    Clients complete w with their own parts when they score it.
    """

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.options.check_fleet(self.task, tuple(self.architectures()))

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    def model(self) -> None:
        return None
