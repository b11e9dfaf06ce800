"""FedKTL, server half: map class means to latent vectors of a generator, and generate images."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses.transfer import mmd
from common.methods.fedktl import Options, Request
from common.models import stylegan
from common.models.simplex import new_transformer
from common.techniques.class_table import ClassSums, TableReply
from server_app.class_table import Newest, TableMean
from server_app.method import Client, Metrics, Replies

CLIP = 100.0  #: largest gradient norm of F and of v, as in the released code
NEAR = 1e-3  #: largest deviation of a row's length from 1


@final
class State(Newest, kind="fedktl.State"):
    transformer: StateDict
    vectors: Tensor
    images: Tensor | None


@final
class FedKTL(TableMean[Options]):
    """Server that minimises MMD²(F(P), latent vectors) + λ mean (F(P) − v_y)², x_c = G(v_c)."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        task, classes = self.task, self.task.num_classes
        channels, *size = task.shape
        self.size = (size[0], size[1])
        with seeds.scope(task.seed, "init", "generator"):
            path = self.options.generator
            generator = (
                stylegan.load(path, channels, "fedktl.generator")
                if path
                else stylegan.untrained(channels, self.size)
            )
            self.transformer = tree.snapshot(new_transformer(classes, generator.vector))
            self.vectors = torch.randn(classes, generator.vector)  #: v [C, m]
        self.generator = generator.eval().requires_grad_(False).to(task.device)
        self.images: Tensor | None = None  #: x_c, uint8 [C, channels, height, width]

    def request(self, t: int) -> Request:
        return Request(images=self.images, vectors=None if self.images is None else self.vectors)

    def check(self, client: Client, reply: TableReply) -> None:
        super().check(client, reply)
        for c in reply.counts.nonzero().flatten().tolist():
            if abs((length := float(reply.table[c].norm())) - 1) > NEAR:
                raise ValueError(f"its row of class {c} has the length {length:g}, not 1")

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        replies = self.newest(replies)
        o, task, metrics = self.options, self.task, dict[str, float]()
        transformer = new_transformer(task.num_classes, self.generator.vector)
        transformer.load_state_dict(self.transformer)
        transformer.to(task.device)
        self.vectors = self._means(replies, transformer)
        if o.server_epochs and len(self.pairs(replies)[1]) > 1:  # BatchNorm fails on one row
            vectors = nn.Parameter(self.vectors.to(task.device))
            draw = seeds.stream(task.seed, "latents", t, device=task.device)

            def loss(P: Tensor, y: Tensor) -> Tensor:
                Q, size = transformer(P), (len(P), self.generator.latent)
                z = torch.randn(size, generator=draw, device=P.device)
                apart = F.mse_loss(Q, vectors[y])
                return mmd(Q, self.generator.mapping(z)) + o.lambda_term * apart

            trained = self.train_on_pairs(
                t,
                replies,
                [{"params": list(transformer.parameters())}, {"params": [vectors]}],
                loss,
                epochs=o.server_epochs,
                lr=o.server_lr,
                optimizer="adam",
                size=o.server_batch_size,
                least=2,
                clip=CLIP,
            )
            metrics = {"server_loss": trained}
            self.vectors = self._means(replies, transformer)
        self.transformer = tree.snapshot(transformer)
        self.images = self.generator.pixels(self.vectors.to(task.device), self.size).cpu()
        return metrics

    @torch.no_grad()
    def _means(self, replies: Replies[TableReply], transformer: nn.Module) -> Tensor:
        """Return the means of F(P) by class [C, m], the former vector of a class without P.

        ``transformer``: F, which is in train mode afterwards.
        """
        P, y = self.pairs(replies)
        sums = ClassSums(self.task.num_classes)
        sums.add(transformer.eval()(P), y)
        transformer.train()
        rows, present = sums.table()
        return torch.where(present[:, None], rows, self.vectors)
