"""FedL2G, server half: train the guiding vectors on the clients' gradients."""

from collections.abc import Sequence
from typing import final

import torch

from common import seeds
from common.methods.fedl2g import Options, TableReply
from server_app.aggregation.staleness import Discount
from server_app.class_table import TableMean
from server_app.method import Client, Metrics, Replies


@final
class FedL2G(TableMean[Options]):
    """Server with v ← v − η_s g, g the mean of the clients' rows with its norm clipped."""

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        if self.rows is None:
            draw = seeds.stream(self.task.seed, "init", "guidance")
            self.rows = torch.randn(self.task.num_classes, self.width, generator=draw)
            self.present = torch.ones(self.task.num_classes, dtype=torch.bool)

    def rebased(self, client: Client, reply: TableReply, discount: Discount) -> TableReply:
        return reply.model_copy(update={"table": discount.s * reply.table})

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        assert self.rows is not None, "begin has drawn the vectors"
        g, present = self.mean(replies)
        norm, most = float(g.norm()), self.options.server_clip
        scale = most / norm if 0 < most < norm else 1.0
        self.rows = self.rows - self.options.rate * scale * g
        return {"present": float(present.sum()), "gradient_norm": norm}
