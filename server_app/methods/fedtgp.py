"""FedTGP, server half: train prototypes on those of the clients."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.fedtgp import Options
from common.models.prototypes import PrototypeGenerator, distances, largest_gap
from common.techniques.class_table import TableReply
from server_app.class_table import Newest, Prototypes
from server_app.method import Metrics, Replies


@final
class State(Newest, kind="fedtgp.State"):
    rows: Tensor | None
    present: Tensor | None
    generator: StateDict | None


@final
class FedTGP(Prototypes[Options]):
    """Server with P̂ = G(), trained with CE(−(‖P − P̂_c‖ + δ · 1[c = y])_c, y)."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.generator: StateDict | None = None  #: None before round 1

    def step(self, t: int, replies: Replies[TableReply]) -> Metrics:
        replies = self.newest(replies)
        o, metrics = self.options, dict[str, float]()
        generator = self._generator()
        if o.server_epochs:
            margin = largest_gap(*self.mean(replies), o.margin)

            def loss(P: Tensor, y: Tensor) -> Tensor:
                return contrast(P, generator(), y, margin)

            epochs, lr = o.server_epochs, o.server_lr
            trained = self.train_on_pairs(
                t, replies, generator.parameters(), loss, epochs=epochs, lr=lr
            )
            metrics = {"server_loss": trained, "margin": margin}
        self.generator = tree.snapshot(generator)
        self.rows = self._prototypes(generator)
        self.present = torch.ones(self.task.num_classes, dtype=torch.bool)
        return metrics

    @torch.no_grad()
    def _prototypes(self, generator: PrototypeGenerator) -> Tensor:
        prototypes: Tensor = generator().cpu()
        return prototypes

    def _generator(self) -> PrototypeGenerator:
        with seeds.scope(self.task.seed, "init", "prototypes"):
            generator = PrototypeGenerator(self.task.num_classes, self.width)
        if self.generator is not None:
            generator.load_state_dict(self.generator)
        return generator.to(self.task.device)


def contrast(P: Tensor, prototypes: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return CE(−(‖P − P̂_c‖ + δ · 1[c = y])_c, y), mean over the batch, in nats.

    ``P``: received prototypes [n, K]; ``prototypes``: P̂ [C, K]; ``margin``: δ ≥ 0.
    """
    apart = distances(P, prototypes)
    return F.cross_entropy(-(apart + margin * F.one_hot(y, len(prototypes))), y)
