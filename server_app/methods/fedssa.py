"""FedSSA, server half: average the head rows of each class over the clients that hold it."""

from collections.abc import Iterable
from typing import final

from common.exchange import tree
from common.exchange.records import Records, StateDict
from common.methods.fedssa import Options, Reply, row, rows
from common.models.classifier import Classifier
from server_app.head_mean import HeadMean
from server_app.method import Client, Metrics, Replies


@final
class State(Records, kind="fedssa.State"):
    head: StateDict
    last: dict[int, StateDict]


@final
class FedSSA(HeadMean[Options]):
    """Server with global_c ← mean of the rows c of the clients that hold class c."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.last: dict[int, StateDict] = {}  #: each client's newest rows, if they are combined

    def parts(self, net: Classifier) -> StateDict:
        return rows(net.head, range(self.task.num_classes))

    def held(self, client: Client) -> Iterable[str]:
        return map(row, client.info.classes)

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        if not (self.options.stale or self.config.buffered):
            return super().step(t, replies)
        first = {c.k: tree.cut(self.head, self.held(c)) for c in self.clients}
        self.last = first | self.last  # a client that has not replied counts with the present rows
        self.last |= {client.k: reply.w for client, reply in replies}
        members = [client for client in self.clients if client.k not in self.excluded]
        self.combine([(client, self.last[client.k]) for client in members])
        return {}
