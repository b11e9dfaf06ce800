"""Base class of server halves that average the clients' heads, whole or in parts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, final

from torch import Tensor

from common.exchange import tree
from common.exchange.protocol import ModelReply, ModelRequest, Request
from common.exchange.records import StateDict
from common.methods.lg_fedavg import SharedHead
from common.models.classifier import Classifier
from server_app.aggregation.mean import average_layers
from server_app.method import Client, Method, Metrics, Replies

O = TypeVar("O", bound=SharedHead)  # noqa: E741 - a method's options


class HeadMean(Method[O, ModelReply], ABC):
    """Server with the parts of a head, e ← Σ_k p_k e_k over the clients that send part e.

    It has no features and no model.
    """

    @abstractmethod
    def parts(self, net: Classifier) -> StateDict:
        """Return the parts of the initial network's head by name."""

    def held(self, client: Client) -> Iterable[str]:
        """Return the names of the parts that a client sends."""
        return self.head

    def prepare(self) -> None:
        super().prepare()
        self.head = self.parts(self.build(self.global_spec))

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.options.check_fleet(self.task, (self.global_spec, *self.roster.values()))

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    def request(self, t: int) -> ModelRequest:
        return ModelRequest(w=self.head)

    def check(self, client: Client, reply: ModelReply) -> None:
        tree.check_like(reply.w, tree.cut(self.head, self.held(client)), "head")

    def change(self, sent: Request, reply: ModelReply) -> Iterator[tuple[str, Tensor]]:
        assert isinstance(sent, ModelRequest)
        yield from tree.steps(tree.cut(sent.w, reply.w), reply.w)

    def current(self, client: Client, t: int) -> StateDict:
        return self.head

    def uploaded(self, t: int) -> StateDict:
        return self.head

    def step(self, t: int, replies: Replies[ModelReply]) -> Metrics:
        self.combine([(client, reply.w) for client, reply in replies])
        return {}

    @final
    def combine(self, uploads: Sequence[tuple[Client, StateDict]]) -> None:
        """Set each part of the head to the mean of the clients' ones; without any it stays."""
        states, sizes = [w for _, w in uploads], [client.weight for client, _ in uploads]
        options = self.config.average
        self.head = average_layers(states, sizes, self.head, options, self.head.keys())

    def model(self) -> None:
        return None
