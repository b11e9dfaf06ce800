"""A server half: the hooks of one method, as a Flower strategy.

Subclasses Flower's ``Strategy`` and not its ``FedAvg``, which sends everyone the same payload,
demands equal reply keys, turns integer buffers into floats, and averages on over failed clients.
The loop over rounds is in ``server_app/rounds.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from common import models, protocol, seeds, tree
from common.config import Config
from common.data.dataset import Dataset
from common.memory_format import arrange
from common.models.classifier import Classifier
from common.records import Records, StateDict, array_bytes, count_bytes
from server_app.talk.census import Client
from server_app.talk.exchange import Failure
from server_app.talk.replies import check_finite, judge, open_reply

U = TypeVar("U", bound=protocol.Up)
Metrics = dict[str, float]


class Method(Strategy, ABC, Generic[U]):
    """The state of one federation on the server.

    ``config``: the run's; ``dataset``: the server's, of which it uses shape, classes and test part;
    ``device``: where it aggregates, distils and scores; ``global_spec``: its own architecture.
    """

    answers: ClassVar[type[protocol.Up]]
    """What clients answer a round with."""
    keeps: ClassVar[type[Records]]
    """What ``state`` returns."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        global_spec: str,
        experiment: str,
    ) -> None:
        self.config, self.dataset, self.device = config, dataset, device
        self.global_spec, self.experiment = global_spec, experiment
        self.clients: list[Client] = []
        self.traffic: dict[str, int] = {}
        self._shapes: dict[str, StateDict] = {}
        self.prepare()

    def prepare(self) -> None:
        """Build what the method starts with; called once, when the above is set."""

    # What a method says.

    @abstractmethod
    def down(self, t: int) -> protocol.Down | Callable[[Client], protocol.Down]:
        """What round t sends: one payload for everybody, or a function of the client."""

    def check(self, client: Client, up: U) -> None:
        """Raise ``ValueError`` if a reply of the right type is not to be used."""
        return

    @abstractmethod
    def step(self, t: int, ups: list[tuple[Client, U]]) -> Metrics:
        """Aggregate, distil, sample or mask; ``ups`` is in order of k and never empty."""

    @abstractmethod
    def model(self) -> Classifier | None:
        """What the server scores, on its device; None for a method without a global model."""

    def ask(self) -> StateDict | None:
        """The global weights that clients score on their own data."""
        net = self.model()
        return None if net is None else tree.snapshot(net)

    @property
    def model_name(self) -> str:
        """What ``model`` is called where several global models are scored side by side."""
        return "global"

    def further_models(self) -> dict[str, StateDict]:
        """Further global models by name, of the same architecture, scored beside ``model``."""
        return {}

    def networks(self) -> dict[str, Classifier]:
        """The global models by architecture, where each client trains its own architecture.

        The run's score is then their mean, and a client scores the one of its own architecture.
        """
        return {}

    @property
    def eval_bn(self) -> str:
        """BatchNorm's statistics when scoring: ``running``, ``batch`` or ``recalibrated``."""
        return "running"

    def numbers(self, ups: list[tuple[Client, U]]) -> int | None:
        """How many numbers the literature's cost formula counts for one round of these clients."""
        return None

    def second(self, t: int, ups: list[tuple[Client, U]]) -> dict[int, Message]:
        """Messages "train.second" of a second exchange in round t, after ``step``, by client."""
        return {}

    def receive_second(
        self, t: int, replies: Mapping[int, Message]
    ) -> tuple[dict[str, Any], list[Failure]]:
        """What the second exchange adds to the journal's entry, and what was no good answer."""
        return {}, []

    @abstractmethod
    def state(self) -> Records:
        """Everything that round t + 1 depends on."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Inverse of ``state``."""

    def begin(self, clients: Sequence[Client]) -> None:
        """After the census; raise ``ValueError`` if the federation does not suit the method."""
        self.clients = list(clients)

    # What every method can use.

    def build(
        self, spec: str, weights: Mapping[str, Tensor] | None = None, *name: str | int
    ) -> Classifier:
        """A network on the server's device: with ``weights``, or as first drawn for the server."""
        net = models.build(
            spec,
            self.dataset.shape,
            self.dataset.num_classes,
            seed=self.config.run.seed,
            name=("init", *(name or ("global",))),
            stem=self.config.run.stem,
        )
        if weights is not None:
            net.load_state_dict(weights)
        return arrange(net, self.config.train.memory_format).to(self.device)

    def expected(self, spec: str) -> StateDict:
        """Names, shapes and dtypes of an architecture's state dict; the values mean nothing."""
        if spec not in self._shapes:
            shape, classes = self.dataset.shape, self.dataset.num_classes
            with torch.device("meta"):
                net = models.build(spec, shape, classes, seed=0, stem=self.config.run.stem)
            self._shapes[spec] = dict(net.state_dict())
        return self._shapes[spec]

    def parameters(self, spec: str) -> int:
        """How many parameters an architecture has for this task."""
        shape, classes = self.dataset.shape, self.dataset.num_classes
        return models.parameters(spec, shape, classes, stem=self.config.run.stem)

    def check_size(self, client: Client) -> None:
        """Raise ``ValueError`` if a client's model could not be sent: then it is not built here."""
        size, limit = 4 * self.parameters(client.model) / 1e6, self.config.wire.max_mb
        if size > limit:
            raise ValueError(
                f"client {client.k}: {client.model} has {size:.0f} MB, wire.max-mb = {limit:g}"
            )

    # Flower's hooks.

    def select(self, t: int) -> list[Client]:
        """The clients of round t, in order of k, from the stream "select"."""
        size = self.config.run.per_round or len(self.clients)
        rng = seeds.rng(self.config.run.seed, "select", t)
        chosen = rng.choice(len(self.clients), size=size, replace=False)
        return [self.clients[k] for k in sorted(int(k) for k in chosen)]

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord | None = None,
        config: ConfigRecord | None = None,
        grid: Grid | None = None,
    ) -> Iterable[Message]:
        return self.messages(server_round, self.select(server_round)).values()

    def messages(self, t: int, selected: Sequence[Client]) -> dict[int, Message]:
        """Round t's training messages by client. A payload for everybody is packed once."""
        down = self.down(t)
        if callable(down):
            packed = {client.k: down(client).pack() for client in selected}
        else:
            packed = dict.fromkeys([client.k for client in selected], down.pack())
        self._count("down", packed.values())
        return {
            client.k: Message(packed[client.k], client.node, "train", group_id=str(t))
            for client in selected
        }

    def receive(
        self, t: int, replies: Mapping[int, Message]
    ) -> tuple[list[tuple[Client, U]], list[Failure]]:
        """Unpack and check; a reply that is not good becomes a failure and enters nothing."""
        self._count("up", [reply.content for reply in replies.values()])
        good: list[tuple[Client, U]] = []

        def accept(k: int, reply: Message) -> None:
            up: Any = open_reply(reply, self.answers, self.config)
            self._check_identity(up, k, t)
            check_finite(up)
            self.check(self.clients[k], up)
            good.append((self.clients[k], up))

        return good, judge(t, replies, accept, "reply")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        good, _ = self.receive(server_round, self._by_client(replies))
        if not good:
            return None, None
        metrics = self.step(server_round, good)
        weights = self.ask()
        return (ArrayRecord(weights) if weights else None), MetricRecord(dict(metrics))

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord | None = None,
        config: ConfigRecord | None = None,
        grid: Grid | None = None,
    ) -> Iterable[Message]:
        return self.questions(server_round).values()

    def questions(self, t: int) -> dict[int, Message]:
        """Messages that ask every client to score models, by client."""
        nets = self.networks()
        weights: dict[str, StateDict | None] = {k: tree.snapshot(net) for k, net in nets.items()}
        weights = weights or {"": self.ask()}
        further = self.further_models()
        asks = {
            spec: protocol.Ask(experiment=self.experiment, t=t, w=w, models=further).pack()
            for spec, w in weights.items()
        }
        packed = {client.k: asks[client.model if nets else ""] for client in self.clients}
        self._count("down", packed.values())
        return {
            client.k: Message(packed[client.k], client.node, "evaluate", group_id=str(t))
            for client in self.clients
        }

    def scores(
        self, t: int, replies: Mapping[int, Message]
    ) -> tuple[list[protocol.Score], list[Failure]]:
        """The clients' answers in order of k, and what was no good answer."""
        self._count("up", [reply.content for reply in replies.values()])
        scores: list[protocol.Score] = []
        further, shared = self.further_models(), self.ask() is not None

        def accept(k: int, reply: Message) -> None:
            score = open_reply(reply, protocol.Score, self.config)
            self._check_identity(score, k, t)
            _check_score(score, self.clients[k].peer.n_test, shared, further)
            scores.append(score)

        return scores, judge(t, replies, accept, "score")

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        scores, _ = self.scores(server_round, self._by_client(replies))
        values = [score.accuracy for score in scores if score.accuracy is not None]
        return MetricRecord({"accuracy": sum(values) / len(values)}) if values else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """The whole run; rounds, timeouts and hyper-parameters come from the run config."""
        from server_app.rounds import run

        run(self, grid)
        weights = self.ask()
        return Result(arrays=ArrayRecord(weights) if weights else ArrayRecord())

    def summary(self) -> None:
        """Nothing to log: the journal has it."""

    def _by_client(self, replies: Iterable[Message]) -> dict[int, Message]:
        """The first reply of each client's node; what no client's node sent is left out."""
        ids = {client.node: client.k for client in self.clients}
        found: dict[int, Message] = {}
        for reply in replies:
            if reply.has_content() and reply.metadata.src_node_id in ids:
                found.setdefault(ids[reply.metadata.src_node_id], reply)
        return found

    def _check_identity(self, payload: Any, k: int, t: int) -> None:
        for what, got, expected in (
            ("client", payload.k, k),
            ("round", payload.t, t),
            ("experiment", payload.experiment, self.experiment),
        ):
            if got != expected:
                raise ValueError(f"it is for {what} {got!r}, expected {expected!r}")

    def _count(self, way: str, contents: Iterable[RecordDict]) -> None:
        for content in contents:
            self.traffic[way] = self.traffic.get(way, 0) + count_bytes(content)
            arrays = f"arrays_{way}"
            self.traffic[arrays] = self.traffic.get(arrays, 0) + array_bytes(content)


def _check_score(score: protocol.Score, n: int, shared: bool, further: Mapping[str, Any]) -> None:
    """A score over the ``n`` test samples of the census, and of the models that were asked for."""
    if score.n != n:
        raise ValueError(f"it is over {score.n} test samples, in the census the client had {n}")
    for what, got, expected in (
        ("own", score.accuracy, n > 0),
        ("global", score.accuracy_global, n > 0 and shared),
    ):
        if (got is not None) != expected:
            there = "is missing" if expected else "was not asked for"
            raise ValueError(f"the accuracy of the {what} model {there}")
    names = sorted(further) if n else []
    if sorted(score.accuracies) != names:
        raise ValueError(f"it scores the models {sorted(score.accuracies)}, expected {names}")


def mean_metrics(ups: Sequence[tuple[Client, Any]]) -> Metrics:
    """The clients' scalars averaged with their training samples as weights."""
    names = sorted({name for _, up in ups for name in up.metrics})
    result = {}
    for name in names:
        having = [(client.n, up.metrics[name]) for client, up in ups if name in up.metrics]
        result[f"client_{name}"] = sum(n * v for n, v in having) / sum(n for n, _ in having)
    return result
