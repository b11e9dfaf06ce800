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

    state_type = State

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
            s_in, s_out = self.sample(t, client.k) or (None, None)
            return Request(w=self.w, s_in=s_in, s_out=s_out)

        return payload

    def sample(self, t: int, k: int) -> tuple[Tensor, Tensor] | None:
        """Return S of round t for client k: ``samples`` pairs of the pool, or all if fewer.

        They are drawn uniformly from the stream "features", without replacement. None if the pool
        has no pair for the client.
        """
        others = self.options.others_only
        name = ("features", k, t) if others else ("features", t)
        sources = [j for j in sorted(self.rounds) if j != k or not others]
        pairs = [(j, row) for j in sources for row in range(len(self.s_in[j]))]
        if not pairs:
            return None
        order = torch.randperm(len(pairs), generator=seeds.stream(self.task.seed, *name))
        chosen = [pairs[i] for i in order[: self.options.samples].tolist()]
        s_in, s_out = ([s[j][row] for j, row in chosen] for s in (self.s_in, self.s_out))
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
        if s is None:
            if self.options.in_training:
                raise ValueError(f"{name} is missing")
            return
        if not self.options.in_training:
            raise ValueError(f"{name} is present, but in-training = false")
        if s.dtype != torch.float32 or tuple(s.shape[1:]) != shape:
            actual = f"{str(s.dtype).removeprefix('torch.')}{list(s.shape)}"
            raise ValueError(f"{name} is {actual}, expected float32{['n', *shape]}")
        if not 1 <= len(s) <= limit:
            raise ValueError(f"{name} has {len(s)} samples, a batch has 1 to {limit}")

    def cached(self, reply: Reply) -> Reply:
        return super().cached(reply).model_copy(update={"s_in": None, "s_out": None})

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        sent = {
            client.k: (reply.s_in, reply.s_out)
            for client, reply in replies
            if reply.s_in is not None and reply.s_out is not None
        }
        bound, pairs = self.options.bound, list(zip(*sent.values(), strict=True))
        s_in, s_out = (bounded_rows(s, bound) if bound else s for s in pairs or ((), ()))
        for k, *pair in zip(sent, s_in, s_out, strict=True):
            self.put(t, k, *pair)
        return {}
