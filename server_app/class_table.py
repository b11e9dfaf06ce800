"""Base classes of server halves that combine the clients' class tables."""

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeVar, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from common import progress, seeds
from common.exchange.protocol import Request
from common.exchange.records import Records, StateDict
from common.techniques.class_table import (
    ClassTable,
    PrototypeOptions,
    RowOptions,
    TableReply,
    TableRequest,
    check_table,
    class_mean,
)
from common.training import optimise
from common.training.fit import Loss, fit
from server_app.method import Client, Method, Metrics, Models, Replies

T = TypeVar("T", bound=RowOptions)
P = TypeVar("P", bound=PrototypeOptions)


class Newest(Records, kind="class_table.Newest"):
    """State of a server in asynchronous rounds, which combines the newest table of every client."""

    tables: dict[int, StateDict] = {}
    """``table`` and ``counts`` of the newest reply, by client; empty in synchronous rounds."""


class State(Newest, kind="class_table.State"):
    """State of a server with one table."""

    rows: Tensor | None
    present: Tensor | None


class TableMean(Method[T, TableReply], ABC):
    """Server with the class table of the last round's replies, which clients receive next.

    In asynchronous rounds the table is that of the newest replies of all members.
    """

    state_type: ClassVar[type[Records]] = State

    def prepare(self) -> None:
        super().prepare()
        self.rows: Tensor | None = None
        self.present: Tensor | None = None
        self.tables: dict[int, StateDict] = {}  #: as in the state; never modified in place
        self.width = self.options.width(self.task, self.config.brought)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.width = self.options.width(self.task, [*self.roster.values()])

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    def request(self, t: int) -> Request | Callable[[Client], Request]:
        return self.table_request()

    def table_request(self) -> TableRequest:
        """Return the request with the newest table."""
        return TableRequest(rows=self.rows, present=self.present)

    def check(self, client: Client, reply: TableReply) -> None:
        most = client.n if self.options.by_counts else 0
        check_table(reply, self.task.num_classes, self.width, client.info.classes, most)

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        """Average the tables; a class that none of the replies has is without a row."""
        self.rows, self.present = self.mean(self.newest(replies))
        return {"present": float(self.present.sum())}

    @final
    def newest(self, replies: Replies[TableReply]) -> Replies[TableReply]:
        """Return the replies that a step combines: those of the round.

        In asynchronous rounds return the newest reply of every member, with those of this step.
        """
        if not self.config.buffered:
            return replies
        new = {c.k: {"table": reply.table, "counts": reply.counts} for c, reply in replies}
        self.tables = tables = self.tables | new
        members = [c for c in self.clients if c.k in tables and c.k not in self.excluded]

        def load(client: Client) -> TableReply:
            kept = tables[client.k]
            return TableReply.model_construct(table=kept["table"], counts=kept["counts"])

        return Replies(members, load, in_memory=True)

    @staticmethod
    def mean(replies: Replies[TableReply]) -> ClassTable:
        """Return the mean of the tables by their counts."""
        pairs = [(reply.table, reply.counts) for _, reply in replies]
        return class_mean([table for table, _ in pairs], [counts for _, counts in pairs])

    def train_on_pairs(
        self,
        t: int,
        replies: Replies[TableReply],
        parameters: ParamsT,
        loss: Loss,
        *,
        epochs: int,
        lr: float,
        optimizer: str = "sgd",
        size: int = 0,
        least: int = 1,
        clip: float = 0.0,
    ) -> float:
        """Train ``parameters`` on all rows of the replies; return the mean loss.

        ``loss``: scalar function of rows [n, m] and their classes [n]. A batch has ``size`` rows,
        by default ``train.batch-size``, and every row occurs once in each of ``epochs`` ≥ 1, except
        in batches of fewer than ``least`` rows. ``clip``: as for ``fit``. In
        asynchronous rounds there are fewer epochs (``server_steps``).
        """
        (x, y), size = self.pairs(replies), size or self.config.train.batch_size
        epochs = self.server_steps(epochs, len(replies))
        draw = seeds.stream(self.task.seed, "batches", "rows", t)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for _ in progress.steps(range(epochs), "epoch"):
                for order in torch.randperm(len(y), generator=draw).split(size):
                    if len(order) >= least:
                        yield x[order.to(x.device)], y[order.to(x.device)]

        made = optimise.make(parameters, optimizer, lr)
        return fit(made, batches(), loss, clip=clip, precision=self.config.run.precision)["loss"]

    def pairs(self, replies: Replies[TableReply]) -> tuple[Tensor, Tensor]:
        """Return all rows [n, m] of the replies and their classes [n], on the server's device."""
        ys = [reply.counts.nonzero().flatten() for _, reply in replies]
        rows = [reply.table[y] for (_, reply), y in zip(replies, ys, strict=True)]
        return torch.cat(rows).to(self.task.device), torch.cat(ys).to(self.task.device)

    def model(self) -> None:
        return None


class Prototypes(TableMean[P], ABC):
    """Server whose table of prototypes also classifies, by the nearest one."""

    name = "prototype"

    def weights_to_score(self) -> StateDict | None:
        if self.rows is None or self.present is None:
            return None
        return {"prototypes": self.rows, "present": self.present}

    def further(self) -> dict[str, Models]:
        """Return the head as a model without weights from the server, where it is not the own."""
        by_prototype = self.options.predict == "prototype"
        return {"head": {self.global_spec: {}}} if by_prototype else {}
