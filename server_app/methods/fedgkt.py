"""FedGKT, server half: learn from everybody's features, answer with logits."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import seeds, tree
from common.losses.distillation import kl
from common.methods.fedgkt import Down, Options, Up
from common.models.classifier import Split
from common.models.split import behind, feature_shape, splittable
from common.records import Records, StateDict
from server_app.method import Client, Method, Metrics, Ups


@final
class State(Records):
    w: StateDict  #: the global architecture; f_s is what lies behind its extractor
    z: dict[int, Tensor]  #: z_s by client, [n_k, C]


@final
class FedGKT(Method[Options, Up]):
    """f_s ← f_s − η ∇ Σ_k T² KL(z_c → f_s(H)) + α CE(f_s(H), y);  z_s = f_s(H)."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.net: Split = splittable(self.build(self.global_spec))
        self.features = feature_shape(self.net, self.task.shape)
        self.w = tree.snapshot(self.net)
        self.z: dict[int, Tensor] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.check_sizes(clients)
        for client in clients:
            theirs = feature_shape(splittable(self.build(client.model)), self.task.shape)
            if theirs != self.features:
                raise ValueError(
                    f"client {client.k}: {client.model} has features {theirs}, "
                    f"{self.global_spec} takes {self.features}"
                )

    def down(self, t: int) -> Callable[[Client], Down]:
        return lambda client: Down(z=self.z.get(client.k))

    def check(self, client: Client, up: Up) -> None:
        n, classes = client.n, self.task.num_classes
        like = {"h": torch.empty(n, *self.features), "z": torch.empty(n, classes)}
        like["y"] = torch.empty(n, dtype=torch.int64)
        tree.check_like({"h": up.h, "z": up.z, "y": up.y}, like, "the reply")
        if int(up.y.min()) < 0 or int(up.y.max()) >= classes:
            raise ValueError(f"y has label {int(up.y.max())}; there are 0 to {classes - 1}")

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        o, device = self.options, self.task.device
        h = torch.cat([up.h for _, up in ups]).to(device)
        z_c = torch.cat([up.z for _, up in ups]).to(device)
        y = torch.cat([up.y for _, up in ups]).to(device)
        self.net.load_state_dict(self.w)
        self.net.train()
        named = self.net.named_parameters()
        behind_it = [p for name, p in named if self.net.part(name) != "extractor"]

        def loss(rows: Tensor) -> Tensor:
            z_s, T = behind(self.net, h[rows]), o.temperature
            return T**2 * kl(z_c[rows], z_s, T) + o.alpha * F.cross_entropy(z_s, y[rows])

        metrics = self.task.fit(t, behind_it, self._rows(t, len(y)), loss)
        self.w = tree.snapshot(self.net)
        for client, up in ups:
            self.z[client.k] = self._logits(up.h)
        return {"server_loss": metrics["loss"]}

    def _rows(self, t: int, n: int) -> Iterator[tuple[Tensor]]:
        """Batches of row numbers; a last one of a single row is left out, for BatchNorm's sake."""
        generator = seeds.stream(self.task.seed, "batches", "server", t)
        for _ in range(self.options.server_epochs):
            for rows in torch.randperm(n, generator=generator).split(self.config.train.batch_size):
                if len(rows) > 1:
                    yield (rows.to(self.task.device),)

    @torch.no_grad()
    def _logits(self, h: Tensor) -> Tensor:
        self.net.eval()
        parts = (part.to(self.task.device) for part in h.split(self.config.score.batch_size))
        return torch.cat([behind(self.net, part).float().cpu() for part in parts])

    def numbers(self, ups: Ups[Up]) -> int:
        """DL-MH's equation 7 for one round: features and both sides' logits of every sample."""
        return (math.prod(self.features) + 2 * self.task.num_classes) * sum(ups.sizes)

    def model(self) -> None:
        return None

    def ask(self) -> StateDict:
        return self.w
