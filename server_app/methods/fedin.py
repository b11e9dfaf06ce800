"""FedIN, server half: average across architectures, store features and send samples of them.

``server_app/aggregation/matching.py`` computes the average.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from common import seeds
from common.methods.fedin import Options, Reply, Request
from common.models.split import Shapes, common_shapes
from server_app.aggregation.robust import bounded_rows
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="fedin.State"):
    s_in: dict[int, Tensor]
    s_out: dict[int, Tensor]
    rounds: dict[int, int]


@final
class FedIN(Averaged[Options, Reply]):
    """Server with the layer-wise mean w̄ of the w_k and a pool of features.

    It sends S, ``samples`` pairs (s_in, s_out) of the pool.
    """

    reply_type, state_type = Reply, State

    def prepare(self) -> None:
        super().prepare()
        self.s_in: dict[int, Tensor] = {}  #: pool: the latest batch of each client
        self.s_out: dict[int, Tensor] = {}
        self.rounds: dict[int, int] = {}  #: round of that batch, by client

    def check_architectures(self) -> None:
        task = self.task
        self.shapes: Shapes = common_shapes(
            self.architectures(), task.shape, task.num_classes, stem=task.stem
        )

    def left(self, k: int) -> None:
        super().left(k)
        for pool in (self.s_in, self.s_out, self.rounds):
            pool.pop(k, None)

    def request(self, t: int) -> Callable[[Client], Request]:
        def payload(client: Client) -> Request:
            s_in, s_out = self._sample(t, client.k) or (None, None)
            return Request(w=self.w, s_in=s_in, s_out=s_out)

        return payload

    def _sample(self, t: int, k: int) -> tuple[Tensor, Tensor] | None:
        """Return S of round t for client k, drawn from the stream "features"; None if empty."""
        o, seed = self.options, self.task.seed
        if not o.others_only:
            return self.draw(o.samples, seeds.stream(seed, "features", t))
        return self.draw(o.samples, seeds.stream(seed, "features", k, t), without=k)

    def draw(
        self, size: int, generator: torch.Generator, *, without: int | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Return ``size`` pairs drawn uniformly from the pool without replacement, or all if fewer.

        ``without``: the client whose pairs are left out. None if there is no pair.
        """
        others = [k for k in sorted(self.rounds) if k != without]
        indices = [(k, row) for k in others for row in range(len(self.s_in[k]))]
        if not indices:
            return None
        chosen = torch.randperm(len(indices), generator=generator)[:size].tolist()
        pairs = [indices[i] for i in chosen]
        s_in, s_out = ([s[k][row] for k, row in pairs] for s in (self.s_in, self.s_out))
        return torch.stack(s_in), torch.stack(s_out)

    def put(self, t: int, k: int, s_in: Tensor, s_out: Tensor) -> None:
        """Add client k's batch of round t; a full pool loses its oldest batch (ties: larger k)."""
        self.s_in[k], self.s_out[k], self.rounds[k] = s_in, s_out, t
        while len(self.rounds) > self.options.pool:
            oldest = min(self.rounds, key=lambda k: (self.rounds[k], -k))
            del self.s_in[oldest], self.s_out[oldest], self.rounds[oldest]

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        self._check_features("s_in", reply.s_in, self.shapes.s_in)
        self._check_features("s_out", reply.s_out, self.shapes.s_out)

    def _check_features(self, name: str, s: Tensor | None, shape: tuple[int, ...]) -> None:
        limit = self.config.train.batch_size
        if not self.options.in_training:
            if s is not None:
                raise ValueError(f"{name} is present, but in-training = false")
            return
        if s is None:
            raise ValueError(f"{name} is missing")
        if s.dtype != torch.float32 or tuple(s.shape[1:]) != shape:
            actual = f"{str(s.dtype).removeprefix('torch.')}{list(s.shape)}"
            raise ValueError(f"{name} is {actual}, expected float32{['n', *shape]}")
        if not 1 <= len(s) <= limit:
            raise ValueError(f"{name} has {len(s)} samples, a batch has 1 to {limit}")

    def cached(self, reply: Reply) -> Reply:
        return super().cached(reply).model_copy(update={"s_in": None, "s_out": None})

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        sent = [
            (client.k, reply.s_in, reply.s_out)
            for client, reply in replies
            if reply.s_in is not None and reply.s_out is not None
        ]
        s_in = self._bounded([pair[1] for pair in sent])
        s_out = self._bounded([pair[2] for pair in sent])
        for (k, *_), into, out in zip(sent, s_in, s_out, strict=True):
            self.put(t, k, into, out)
        return {}

    def _bounded(self, features: list[Tensor]) -> list[Tensor]:
        """Return the clients' features [n, ...] within ``fedin.bound``."""
        return bounded_rows(features, self.options.bound) if self.options.bound else features
