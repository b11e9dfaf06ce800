"""FD, server half: average the clients' mean logits by class."""

from collections.abc import Callable
from typing import final

from torch import Tensor

from common.exchange.records import StateDict
from common.methods.fd import Options
from common.techniques.class_table import TableReply, TableRequest, leave_one_out
from server_app.class_table import Newest, TableMean
from server_app.method import Client, Metrics, Replies


@final
class State(Newest, kind="fd.State"):
    rows: Tensor | None
    present: Tensor | None
    others: dict[int, StateDict]


@final
class FD(TableMean[Options]):
    """Server with ẑ_c ← mean of the logits of the clients that have class c."""

    state_type = State

    others: dict[int, StateDict] = {}  #: means without client k; never modified in place

    def left(self, k: int) -> None:
        super().left(k)
        self.others = {j: mean for j, mean in self.others.items() if j != k}

    def request(self, t: int) -> Callable[[Client], TableRequest]:
        common = self.table_request()  # one object, which is packed once
        own = {k: TableRequest.model_validate(mean) for k, mean in self.others.items()}
        return lambda client: own.get(client.k, common)

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        replies = self.newest(replies)
        self.rows, self.present = self.mean(replies)
        if self.options.weights == "leave-one-out":
            pairs = [(reply.table, reply.counts) for _, reply in replies]
            means = leave_one_out([table for table, _ in pairs], [counts for _, counts in pairs])
            by_client = zip(replies.clients, means, strict=True)
            self.others = {client.k: mean._asdict() for client, mean in by_client}
        return {"present": float(self.present.sum())}
