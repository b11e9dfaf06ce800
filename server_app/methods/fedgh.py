"""FedGH, server half: train the common head on the clients' class means."""

from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from common import seeds
from common.exchange import tree
from common.exchange.protocol import ModelRequest
from common.exchange.records import StateDict
from common.methods.fedgh import Options
from common.techniques.class_table import TableReply
from server_app.class_table import Newest, TableMean
from server_app.method import Metrics, Replies


@final
class State(Newest, kind="fedgh.State"):
    head: StateDict


@final
class FedGH(TableMean[Options]):
    """Server with h ← h − η ∇ CE(h(P), y) over the received pairs (P, y)."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        with seeds.scope(self.task.seed, "init", "head"):
            self.head = tree.snapshot(nn.Linear(self.width, self.task.num_classes))

    def request(self, t: int) -> ModelRequest:
        return ModelRequest(w=self.head)

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        replies = self.newest(replies)
        epochs, lr = self.options.server_epochs, self.options.server_lr
        if not epochs:
            return {}
        head = nn.Linear(self.width, self.task.num_classes)
        head.load_state_dict(self.head)
        head.to(self.task.device)

        def loss(P: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(head(P), y)

        trained = self.train_on_pairs(t, replies, head.parameters(), loss, epochs=epochs, lr=lr)
        self.head = tree.snapshot(head)
        return {"server_loss": trained}

    def weights_to_score(self) -> StateDict:
        return self.head
