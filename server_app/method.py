"""Base class of a method's server half, with all hooks.

``messaging/messenger.py`` makes and opens messages; ``strategy.py`` has the rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast, final

from torch import Tensor, nn

from common import progress, seeds
from common.exchange import tree
from common.exchange.protocol import (
    ClientInfo,
    FineTunedScoreReply,
    ModelReply,
    ModelRequest,
    Reply,
    Request,
    parameter,
)
from common.exchange.records import Records, StateDict
from common.journal import Entry
from common.models.classifier import Classifier
from common.settings.config import MethodOptions
from common.training.task import Task
from server_app.aggregation.calibration import Cache
from server_app.aggregation.staleness import Discount
from server_app.selection import Selection
from server_app.stopped import Stopped

O = TypeVar("O", bound=MethodOptions)  # noqa: E741 - a method's options
U = TypeVar("U", bound=Reply)
Metrics = dict[str, float]
Models = dict[str, StateDict]
"""Weights by architecture."""


@final
@dataclass(frozen=True)
class Client:
    """Client k: its information from the census, and the id of its node."""

    info: ClientInfo
    node: int

    @property
    def k(self) -> int:
        return self.info.k

    @property
    def n(self) -> int:
        """Local training samples n_k."""
        return self.info.n

    @property
    def weight(self) -> int:
        """n_k, or the tokens to learn of these samples under ``average.weights``."""
        return self.info.targets or self.info.n

    @property
    def architecture(self) -> str:
        return self.info.model


@final
class Replies(Generic[U]):
    """Clients with their replies, in order of k: ``for client, reply in replies``.

    ``load`` returns a client's reply on each access, so that replies in files need not be in memory
    together. ``in_memory``: all replies are in memory or in memory-mapped files. ``sent``: the
    replies as the clients sent them, if these ones were changed.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        load: Callable[[Client], U],
        *,
        in_memory: bool = False,
        sent: Replies[U] | None = None,
    ) -> None:
        self.clients, self._load, self.in_memory = clients, load, in_memory
        self._sent = sent

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[Client, U]], sent: Sequence[tuple[Client, U]] | None = None
    ) -> Replies[U]:
        """Return the valid replies of a round; ``sent``: as the clients sent them."""
        by_k, own = {client.k: reply for client, reply in pairs}, None
        if sent is not None:
            own = cls.of(sent)
        clients = [client for client, _ in pairs]
        return cls(clients, lambda client: by_k[client.k], in_memory=True, sent=own)

    @property
    def as_sent(self) -> Replies[U]:
        """The replies with the models as they were trained, not as updates of the newest version.

        Both are the same except in asynchronous rounds.
        """
        return self if self._sent is None else self._sent

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[tuple[Client, U]]:
        return ((c, self._load(c)) for c in progress.steps(self.clients, "reply"))

    @property
    def sizes(self) -> list[int]:
        """Training samples n_k of each client, or their tokens under ``average.weights``."""
        return [client.weight for client in self.clients]

    def where(self, wanted: Callable[[Client], bool]) -> Replies[U]:
        """Return the replies of the clients that ``wanted`` selects; may be empty."""
        clients = [client for client in self.clients if wanted(client)]
        return Replies(clients, self._load, in_memory=self.in_memory)


class Method(ABC, Generic[O, U]):
    """Base class: the server half of a method, with its state in one federation.

    ``task``: data, settings and device of the run; ``global_spec``: the server's architecture.
    """

    reply_type: ClassVar[type[Reply]]
    """Type of the clients' replies; by default the one in the parameters of the class's bases."""
    state_type: ClassVar[type[Records]]
    """Record of the attributes of the method on which round t + 1 depends."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reply_type" not in vars(cls) and (kind := parameter(cls, Reply)):
            cls.reply_type = kind

    def __init__(self, task: Task, global_spec: str) -> None:
        self.task, self.global_spec = task, global_spec
        self.config = task.config
        self.options = cast("O", task.config.method)
        self.clients: list[Client] = []  #: the members in order of k; set after the census
        self.roster: dict[int, str] = {}  #: architecture of each client, also of absent ones
        self.excluded: frozenset[int] = frozenset()  #: clients not selected since an undone round
        self.unavailable: frozenset[int] = frozenset()  #: clients whose devices are away, by traces
        self.limits: Mapping[int, int] = {}  #: local steps of clients with partial work
        self.attempts: Mapping[int, int] = {}  #: number of undone attempts by round
        self.sent: Mapping[int, Request] = {}  #: requests of this round or step, by client
        self.discounts: Mapping[int, float] = {}  #: weights of the updates, in asynchronous rounds
        self.cache: Cache | None = None  #: the clients' newest updates, under ``buffer.cache``
        self.selection = Selection(self.config)
        self.prepare()

    def prepare(self) -> None:
        """Build the method's initial state; called once, after the attributes above are set."""

    def begin(self, clients: Sequence[Client]) -> None:
        """Set the members after the census; ``roster`` has the absent clients by then.

        Raise ``ValueError`` if the federation does not suit the method.
        """
        self.clients = list(clients)
        self.roster = {**self.roster, **{client.k: client.architecture for client in clients}}
        for client in clients:
            self.admit(client)
        self.selection.check_tags({tag for client in clients for tag in client.info.tags})

    @property
    def roster_size(self) -> int:
        """Number N of clients in the roster; ``clients`` may be fewer."""
        return len(self.roster)

    def server_steps(self, of_a_round: int, clients: int = 0) -> int:
        """Return how many of the server's training steps of a round a step of this run has.

        In asynchronous rounds it is the share K over the clients of a round, and at least one step,
        so that the server trains as much for an update of a client. ``clients``: those on whose
        replies it trains, if these are not of a round.
        """
        if not self.config.buffered or of_a_round == 0:
            return of_a_round
        per_round, roster = self.config.run.per_round, self.roster_size
        size, _ = self.config.buffer.sizes(per_round, roster)
        return max(1, round(of_a_round * size / (clients or per_round or roster)))

    def architectures(self) -> list[str]:
        """Return all architectures of the roster, sorted.

        A client that has never taken part counts with the architecture of its fleet entry.
        """
        return sorted(set(self.roster.values()))

    # Membership: a client takes part, or not, from a round on. ``clients`` is up to date then.

    def admit(self, client: Client) -> None:
        """Raise ``ValueError`` if a client of the census, or a newcomer, does not suit the method.

        ``roster`` has its architecture only if it was expected.
        """

    def joined(self, client: Client, *, lost: bool) -> None:
        """Prepare the state for a client that takes part from the next round on.

        It is new, or it has been a member before. ``lost``: it has none of its stored state, so
        that the server's entry for it must be the initial one. By default the server has none.
        """

    def left(self, k: int) -> None:
        """Update the state for a client that takes no longer part; it may return.

        By default it counts as a client that is not selected.
        """

    @final
    def check_known(self, client: Client) -> None:
        """Raise ``ValueError`` for an architecture that no client of the roster has."""
        known = sorted({*self.roster.values()})
        if client.architecture not in known:
            raise ValueError(
                f"client {client.k} has the architecture {client.architecture}, the federation has "
                f"{', '.join(known)}"
            )

    def check_enough(self, clients: Sequence[Client]) -> None:
        """Raise ``Stopped`` if a round among ``clients`` may have too few replies for a step."""

    # A round.

    def select(self, t: int) -> list[Client]:
        """Return the clients of round t, in order of k, drawn from the members by [select].

        The stream is "select".

        For a repeated round the stream's name also has the attempt.
        """
        absent = self.excluded | self.unavailable
        trusted = [client for client in self.clients if client.k not in absent]
        undone = self.attempts.get(t, 0)
        rng = seeds.rng(self.task.seed, "select", t, *(("attempt", undone) if undone else ()))
        chosen = self.selection.draw([client.info for client in trusted], rng, t)
        if not chosen:
            raise Stopped(f"round {t}: no client has all of select.tags = {self.selection.tags}")
        return [client for client in trusted if client.k in chosen]

    @abstractmethod
    def request(self, t: int) -> Request | Callable[[Client], Request]:
        """Return the payload of round t: one for all clients, or a function of the client."""

    def requests(self, t: int) -> Request | Callable[[Client], Request]:
        """Return the payload of round t as it is sent; by default that of ``request``."""
        return self.request(t)

    def check(self, client: Client, reply: U) -> None:
        """Raise ``ValueError`` if the content of a reply is invalid."""

    def change(self, sent: Request, reply: U) -> Iterator[tuple[str, Tensor]]:
        """Yield name and change of each parameter that was sent and came back trained."""
        if isinstance(sent, ModelRequest) and isinstance(reply, ModelReply):
            yield from tree.steps(sent.w, reply.w)

    def current(self, client: Client, t: int) -> StateDict:
        """Return the newest weights of what a client was sent in round t, in asynchronous rounds.

        It may have further entries. By default there are none. A method whose
        ``Facts.asynchronous`` is ``mean`` or ``training`` overrides this method or ``rebased``.
        """
        return {}

    def uploaded(self, t: int) -> StateDict:
        """Return the weights before round t of the entries that clients upload in it, for [secure].

        All clients upload the same entries. By default there are none.
        """
        return {}

    def rebased(self, client: Client, reply: U, discount: Discount) -> U:
        """Return a reply to a request of an older version as one of the newest version."""
        sent = self.sent[client.k]
        assert isinstance(sent, ModelRequest) and isinstance(reply, ModelReply)
        w = discount(self.current(client, reply.t), sent.w, reply.w)
        return reply.model_copy(update={"w": w})

    @abstractmethod
    def step(self, t: int, replies: Replies[U]) -> Metrics:
        """Update the server's state from the replies; return metrics of the server for the journal.

        A method aggregates, distils, samples or masks here.
        """

    one_shot: ClassVar[bool] = False
    """Whether every round trains the server's model anew from the clients' models."""

    second_reply_name: ClassVar[str] = "second reply"
    """What the second reply is, in the line of one that is refused."""
    second_reply_type: ClassVar[type[Reply] | None] = None
    """Type of the replies in a second exchange of a round; None without a second exchange."""
    trains_second: ClassVar[bool] = False
    """Whether clients train in the second exchange. ``min-replies`` then applies to both exchanges,
    and a client has replied if it replied to both."""

    def second(self, t: int, replies: Replies[U]) -> dict[int, Request]:
        """Return by client the requests of a second exchange of round t, after ``step``."""
        return {}

    def aggregate_second(self, replies: Sequence[tuple[Client, Reply]], entry: Entry) -> None:
        """Use the valid replies of the second exchange; ``entry``: the round's journal entry."""

    def numbers(self, replies: Replies[U]) -> int | None:
        """Return how many numbers the literature's cost formula counts for this round, or None."""
        return None

    # Scored models.

    @abstractmethod
    def model(self) -> Classifier | None:
        """Return the network that the server scores, on its device; None without a global model."""

    name: str = "global"
    """Name of ``model`` in the scores if there are several global models."""

    def networks(self) -> dict[str, Classifier]:
        """Return the global models by architecture, if each client trains its own architecture.

        The run's score is their mean, and a client scores the model of its own architecture. If
        ``main`` is set, it is the run's score and all clients score it.
        """
        return {}

    main: str = ""
    """Name of the one of ``networks`` that counts for the run; set after the census."""

    def scored_by(self, client: Client) -> str:
        """Return the name of the one of ``networks`` that a client scores."""
        return self.main or client.architecture

    def measured_by(self, name: str) -> Sequence[Client]:
        """Return the clients that measure BatchNorm's running statistics (``score.bn``).

        ``name``: one of ``networks``, or an architecture.
        """
        return self.clients

    def further(self) -> dict[str, Models]:
        """Return further global models by name, of the same architectures, to score as well."""
        return {}

    def approximations(self) -> dict[str, Classifier]:
        """Return networks with adapters that a run leaves beside its models, by architecture."""
        return {}

    def parts_to_score(self) -> Models:
        """Return by name the weights that a client completes with its own ones before it scores.

        The completed network is the client's own model. Such a method has no global model, and
        ``scored_by`` names the part of a client. Empty: clients score whole models.
        """
        return {}

    def warning(self) -> str:
        """Return a line about the federation for the log and the journal; call after the census."""
        return ""

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        """Return further networks by name that only the server scores, such as an ensemble.

        ``nets``: the method's scored networks. Each maps images (n, C, H, W) to logits
        (n, classes).
        """
        return {}

    def weights_to_score(self) -> StateDict | None:
        """Return the global weights that clients score on their own data."""
        net = self.model()
        return None if net is None else tree.snapshot(net)

    def release_memory(self) -> None:
        """Free memory that the method can restore; called before each exchange."""

    def uncovered(self) -> list[int]:
        """Return the classes without a training sample at any client, ascending.

        The list is empty under [privacy], which hides the clients' classes.
        """
        covered = {c for client in self.clients for c in client.info.classes}
        classes = range(self.task.num_classes)
        return [] if self.config.privacy.on else [c for c in classes if c not in covered]

    # Checkpoints.

    def state(self) -> Records:
        """Return the attributes that ``state_type`` declares."""
        return self.state_type(
            **{name: getattr(self, name) for name in self.state_type.model_fields}
        )

    def restore(self, state: Mapping[str, object]) -> None:
        """Validate the fields of ``state`` and set them as attributes."""
        for name, value in self.state_type.model_validate(state):
            setattr(self, name, value)

    # For every method.

    def build(self, spec: str, weights: StateDict | None = None, *name: str | int) -> Classifier:
        """Return a network on the server's device, with ``weights`` or the initial weights.

        ``name``: the random stream of the initial weights; by default that of the global model.
        """
        stream = ("init", *(name or ("global",)))
        return self.task.build(spec, weights, name=stream, first=not name)

    def check_sizes(self, clients: Sequence[Client]) -> None:
        """Raise ``ValueError`` if a client's model is too large to send, before it is built."""
        limit = self.config.wire.max_mb
        for client in clients:
            spec = client.architecture
            if (size := 4 * self.task.parameters(spec) / 1e6) > limit:
                raise ValueError(
                    f"client {client.k}: {spec} has {size:.0f} MB, wire.max-mb = {limit:g}"
                )


def mean_metrics(
    replies: Replies[U] | Sequence[tuple[Client, FineTunedScoreReply]], of: str = "client"
) -> Metrics:
    """Return the mean of each client metric, weighted by training samples; ``of``: its prefix."""
    names = sorted({name for _, reply in replies for name in reply.metrics})
    result = {}
    for name in names:
        values = [
            (client.n, reply.metrics[name]) for client, reply in replies if name in reply.metrics
        ]
        result[f"{of}_{name}"] = sum(n * v for n, v in values) / sum(n for n, _ in values)
    return result
