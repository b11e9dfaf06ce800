"""FD, server half: average the clients' mean logits by class."""

from collections.abc import Callable
from typing import final

from torch import Tensor

from common.exchange.records import Records, StateDict
from common.methods.fd import Options
from common.techniques.class_table import TableReply, TableRequest, leave_one_out
from server_app.class_table import TableMean
from server_app.method import Client, Metrics, Replies


@final
class State(Records, kind="fd.State"):
    rows: Tensor | None
    present: Tensor | None
    others: dict[int, StateDict]


@final
class FD(TableMean[Options]):
    """Server with ẑ_c ← mean of the logits of the clients that have class c."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.others: dict[int, StateDict] = {}  #: means without client k, under leave-one-out

    def left(self, k: int) -> None:
        super().left(k)
        self.others = {j: mean for j, mean in self.others.items() if j != k}

    def request(self, t: int) -> Callable[[Client], TableRequest]:
        common = self.table_request()  # one object, which is packed once

        def request(client: Client) -> TableRequest:
            others = self.others.get(client.k)
            if others is None:
                return common
            return TableRequest(rows=others["rows"], present=others["present"])

        return request

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        metrics = super().step(t, replies)
        if self.options.weights == "leave-one-out":
            pairs = [(reply.table, reply.counts) for _, reply in replies]
            means = leave_one_out([table for table, _ in pairs], [counts for _, counts in pairs])
            self.others = {
                client.k: {"rows": mean.rows, "present": mean.present}
                for client, mean in zip(replies.clients, means, strict=True)
            }
        return metrics
