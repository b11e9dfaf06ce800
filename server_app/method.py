"""A server half: the hooks of one method.

``messaging/messenger.py`` sends, opens and checks messages; the rounds are in ``strategy.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast, final

from torch import Tensor, nn

from common.exchange.protocol import ClientInfo, ModelReply, ModelRequest, Reply, Request
from common.exchange.records import Records, StateDict
from common.journal import Entry
from common.models.classifier import Classifier
from common.settings.config import MethodOptions
from common.training import seeds, tree
from common.training.task import Task

O = TypeVar("O", bound=MethodOptions)  # noqa: E741 - a method's options
U = TypeVar("U", bound=Reply)
Metrics = dict[str, float]
Models = dict[str, StateDict]
"""Weights by architecture."""


@final
@dataclass(frozen=True)
class Client:
    """Client k as the census found it, and the node that runs it now."""

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
    def model(self) -> str:
        return self.info.model


@final
class Replies(Generic[U]):
    """What clients sent, with the clients: in order of k, never empty; gone through with ``for``.

    ``load`` supplies a client's upload each time it is asked for, so that uploads which lie in
    files need not be in memory together. ``here``: they are, or lie in mapped files.
    """

    def __init__(
        self, clients: Sequence[Client], load: Callable[[Client], U], *, here: bool = False
    ) -> None:
        self.clients, self._load, self.here = clients, load, here

    @classmethod
    def of(cls, pairs: Sequence[tuple[Client, U]]) -> Replies[U]:
        """The good replies of a round."""
        held = {client.k: reply for client, reply in pairs}
        return cls([client for client, _ in pairs], lambda client: held[client.k], here=True)

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[tuple[Client, U]]:
        return ((client, self._load(client)) for client in self.clients)

    @property
    def sizes(self) -> list[int]:
        """n_k of each client."""
        return [client.n for client in self.clients]

    def where(self, wanted: Callable[[Client], bool]) -> Replies[U]:
        """Those of some of the clients, possibly none."""
        return Replies([c for c in self.clients if wanted(c)], self._load, here=self.here)


class Method(ABC, Generic[O, U]):
    """The state of one federation on the server.

    ``task``: what is learnt, where the server aggregates, distils and scores; ``global_spec``: the
    server's own architecture.
    """

    reply_type: ClassVar[type[Reply]]
    """What clients answer a round with."""
    state_type: ClassVar[type[Records]]
    """Everything that round t + 1 depends on: attributes of the method by their names."""

    def __init__(self, task: Task, global_spec: str) -> None:
        self.task, self.global_spec = task, global_spec
        self.config = task.config
        self.options = cast("O", task.config.method)
        self.clients: list[Client] = []  #: everybody, in order of k, from the census on
        self.excluded: frozenset[int] = frozenset()  #: who is not selected after a round was undone
        self.attempts: Mapping[int, int] = {}  #: how often a round was undone
        self.prepare()

    def prepare(self) -> None:
        """Build what the method starts with; called once, when the above is set."""

    def begin(self, clients: Sequence[Client]) -> None:
        """After the census; raise ``ValueError`` if the federation does not suit the method."""
        self.clients = list(clients)

    # A round.

    def select(self, t: int) -> list[Client]:
        """The clients of round t, in order of k, from the stream "select", for a repeated round
        with the attempt in its name.
        """
        size = self.config.run.per_round or len(self.clients)
        trusted = [client for client in self.clients if client.k not in self.excluded]
        again = self.attempts.get(t, 0)
        rng = seeds.rng(self.task.seed, "select", t, *(("attempt", again) if again else ()))
        chosen = rng.choice(len(trusted), size=min(size, len(trusted)), replace=False)
        return [trusted[i] for i in sorted(int(i) for i in chosen)]

    @abstractmethod
    def request(self, t: int) -> Request | Callable[[Client], Request]:
        """What round t sends: one payload for everybody, or a function of the client."""

    def check(self, client: Client, reply: U) -> None:
        """Raise ``ValueError`` if a reply of the right type is not to be used."""

    def change(self, sent: Request, reply: U) -> Iterator[tuple[str, Tensor]]:
        """What training changed of the parameters that were sent, one by one; nothing where none
        came back.
        """
        if isinstance(sent, ModelRequest) and isinstance(reply, ModelReply):
            yield from tree.steps(sent.w, reply.w)

    @abstractmethod
    def step(self, t: int, replies: Replies[U]) -> Metrics:
        """Aggregate, distil, sample or mask; numbers for the journal beside the clients' own."""

    second_reply_type: ClassVar[type[Reply] | None] = None
    """What clients answer a second exchange of a round with, where the method has one."""
    trains_second: ClassVar[bool] = False
    """Whether clients train in the second exchange: ``min-replies`` holds for it too then, and
    those have replied who answered both."""

    def second(self, t: int, replies: Replies[U]) -> dict[int, Request]:
        """What is sent to clients k in a second exchange of round t, after ``step``."""
        return {}

    def aggregate_second(self, gains: Sequence[tuple[Client, Reply]], entry: Entry) -> None:
        """Take in the good answers of the second exchange."""

    def numbers(self, replies: Replies[U]) -> int | None:
        """How many numbers the literature's cost formula counts for one round of these clients."""
        return None

    # What is scored.

    @abstractmethod
    def model(self) -> Classifier | None:
        """What the server scores, on its device; None for a method without a global model."""

    name: str = "global"
    """What ``model`` is called where several global models are scored side by side."""

    def networks(self) -> dict[str, Classifier]:
        """The global models by architecture, where each client trains its own architecture.

        The run's score is then their mean, and a client scores the one of its own architecture;
        unless one is ``main``.
        """
        return {}

    main: str = ""
    """Which of ``networks`` the run's score is and all clients score, known after the census."""

    def scored_by(self, client: Client) -> str:
        """Which of ``networks`` a client scores."""
        return self.main or client.model

    def measured_by(self, name: str) -> Sequence[Client]:
        """On whose data running statistics are measured (``score.bn``): of one of ``networks``, or
        of an architecture.
        """
        return self.clients

    def further(self) -> dict[str, Models]:
        """Further global models by name, of the same architectures, scored beside ``model``."""
        return {}

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        """Networks by name that the server alone scores beside ``nets``, which are the method's own
        as they are scored: images (n, C, H, W) to logits (n, classes).
        """
        return {}

    def weights_to_score(self) -> StateDict | None:
        """The global weights that clients score on their own data."""
        net = self.model()
        return None if net is None else tree.snapshot(net)

    def release_memory(self) -> None:
        """Let go of memory that the method can have again; called when clients are to work."""

    def uncovered(self) -> list[int]:
        """Classes of which no client of the census has a training sample, ascending; none under
        [privacy], which does not tell what clients hold.
        """
        held = {c for client in self.clients for c in client.info.classes}
        classes = range(self.task.num_classes)
        return [] if self.config.privacy.on else [c for c in classes if c not in held]

    # Checkpoints.

    def state(self) -> Records:
        """What ``state_type`` declares."""
        return self.state_type(
            **{name: getattr(self, name) for name in self.state_type.model_fields}
        )

    def restore(self, state: Mapping[str, object]) -> None:
        """Inverse of ``state``: its fields, checked here."""
        for name, value in self.state_type.model_validate(state):
            setattr(self, name, value)

    # What every method can use.

    def build(self, spec: str, weights: StateDict | None = None, *name: str | int) -> Classifier:
        """A network on the server's device: with ``weights``, or as first drawn for the server."""
        named = ("init", *(name or ("global",)))
        return self.task.build(spec, weights, name=named, first=not name)

    def check_sizes(self, clients: Sequence[Client]) -> None:
        """Raise ``ValueError`` if a client's model could not be sent: then it is not built here."""
        limit = self.config.wire.max_mb
        for client in clients:
            if (size := 4 * self.task.parameters(client.model) / 1e6) > limit:
                raise ValueError(
                    f"client {client.k}: {client.model} has {size:.0f} MB, wire.max-mb = {limit:g}"
                )


def mean_metrics(replies: Replies[U]) -> Metrics:
    """The clients' scalars averaged with their training samples as weights."""
    names = sorted({name for _, reply in replies for name in reply.metrics})
    result = {}
    for name in names:
        having = [
            (client.n, reply.metrics[name]) for client, reply in replies if name in reply.metrics
        ]
        result[f"client_{name}"] = sum(n * v for n, v in having) / sum(n for n, _ in having)
    return result
