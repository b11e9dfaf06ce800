"""FedGKT, server half: train on all clients' features and send logits."""

import math
from collections.abc import Callable, Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import progress, seeds
from common.exchange import tree
from common.exchange.records import Records, StateDict
from common.losses.distillation import kl
from common.methods.fedgkt import Options, Reply, Request
from common.models.classifier import Split
from common.models.split import behind, feature_shape, splittable
from server_app.aggregation.robust import bounded_rows
from server_app.method import Client, Method, Metrics, Replies


@final
class State(Records, kind="fedgkt.State"):
    w: StateDict  #: weights of the global architecture; f_s are the layers after its extractor
    z: dict[int, Tensor]  #: z_s by client, [n_k, C]


@final
class FedGKT(Method[Options, Reply]):
    """Server with f_s ← f_s − η ∇ Σ_k T² KL(z_c → f_s(H)) + α CE(f_s(H), y); z_s = f_s(H)."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.net: Split = splittable(self.build(self.global_spec))
        self.features = feature_shape(self.net, self.task.shape)
        self.w = tree.snapshot(self.net)
        self.z: dict[int, Tensor] = {}

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_sizes([client])
        shape = feature_shape(splittable(self.build(client.architecture)), self.task.shape)
        if shape != self.features:
            raise ValueError(
                f"client {client.k}: {client.architecture} has features {shape}, "
                f"{self.global_spec} takes {self.features}"
            )

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.z.pop(client.k, None)

    def request(self, t: int) -> Callable[[Client], Request]:
        return lambda client: Request(z=self.z.get(client.k))

    def check(self, client: Client, reply: Reply) -> None:
        n, classes = client.n, self.task.num_classes
        like = {"h": torch.empty(n, *self.features), "z": torch.empty(n, classes)}
        like["y"] = torch.empty(n, dtype=torch.int64)
        tree.check_like({"h": reply.h, "z": reply.z, "y": reply.y}, like, "the reply")
        if int(reply.y.min()) < 0 or int(reply.y.max()) >= classes:
            raise ValueError(f"y has label {int(reply.y.max())}; there are 0 to {classes - 1}")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        o, device = self.options, self.task.device
        features = self._bounded([reply.h for _, reply in replies])
        h = torch.cat(features).to(device)
        z_c = torch.cat(self._bounded([reply.z for _, reply in replies])).to(device)
        y = torch.cat([reply.y for _, reply in replies]).to(device)
        self.net.load_state_dict(self.w)
        self.net.train()
        named = self.net.named_parameters()
        parameters = [p for name, p in named if self.net.part(name) != "extractor"]

        def loss(rows: Tensor) -> Tensor:
            z_s, T = behind(self.net, h[rows]), o.temperature
            return T**2 * kl(z_c[rows], z_s, T) + o.alpha * F.cross_entropy(z_s, y[rows])

        metrics = self.task.fit(t, parameters, self._rows(t, len(y)), loss)
        self.w = tree.snapshot(self.net)
        for client, h_k in zip(replies.clients, features, strict=True):
            self.z[client.k] = self._logits(h_k)
        return {"server_loss": metrics["loss"]}

    def _bounded(self, rows: list[Tensor]) -> list[Tensor]:
        """Return the clients' features or logits within ``fedgkt.bound``."""
        return bounded_rows(rows, self.options.bound) if self.options.bound else rows

    def _rows(self, t: int, n: int) -> Iterator[tuple[Tensor]]:
        """Yield batches of row indices, without batches of one row, which BatchNorm cannot use."""
        generator = seeds.stream(self.task.seed, "batches", "server", t)
        for _ in progress.steps(range(self.options.server_epochs), "epoch"):
            batches = torch.randperm(n, generator=generator).split(self.config.train.batch_size)
            for rows in progress.steps(batches, "batch"):
                if len(rows) > 1:
                    yield (rows.to(self.task.device),)

    @torch.no_grad()
    def _logits(self, h: Tensor) -> Tensor:
        self.net.eval()
        batches = (batch.to(self.task.device) for batch in h.split(self.config.score.batch_size))
        return torch.cat([behind(self.net, batch).float().cpu() for batch in batches])

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return DL-MH's equation 7 for one round: features and two sets of logits per sample."""
        return (math.prod(self.features) + 2 * self.task.num_classes) * sum(replies.sizes)

    def model(self) -> None:
        return None

    def weights_to_score(self) -> StateDict:
        return self.w
