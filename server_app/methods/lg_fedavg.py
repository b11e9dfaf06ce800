"""LG-FedAvg, server half: average the clients' heads."""

from collections.abc import Sequence
from typing import final

from common.exchange.records import Records, StateDict
from common.methods import lg_fedavg
from common.methods.lg_fedavg import Options, Reply, Request
from common.training import tree
from server_app.aggregation.mean import average
from server_app.method import Client, Method, Metrics, Replies


@final
class State(Records, kind="lg_fedavg.State"):
    head: StateDict


@final
class LGFedAvg(Method[Options, Reply]):
    """Server with h ← Σ_k p_k h_k; it has no features and no model."""

    reply_type, state_type = Reply, State

    def prepare(self) -> None:
        super().prepare()
        self.head = tree.snapshot(lg_fedavg.shared(self.build(self.global_spec)))

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        architectures = (self.global_spec, *(client.architecture for client in clients))
        self.options.check_fleet(self.task, architectures)

    def request(self, t: int) -> Request:
        return Request(w=self.head)

    def check(self, client: Client, reply: Reply) -> None:
        tree.check_like(reply.w, self.head, "head")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        heads, options = [reply.w for _, reply in replies], self.config.average
        self.head = average(heads, replies.sizes, self.head, options, self.head.keys())
        return {}

    def model(self) -> None:
        return None

    def weights_to_score(self) -> StateDict:
        return self.head
