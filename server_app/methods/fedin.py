"""FedIN, server half: average across architectures, keep features, hand out samples of them.

The average is the work of ``server_app/aggregation/across.py``.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from common.exchange.records import Records, StateDict
from common.methods.fedin import Options, Reply, Request
from common.models.split import Shapes, common_shapes
from common.training import seeds
from server_app.global_model import Averaged
from server_app.method import Client, Metrics, Replies


@final
class State(Records, kind="fedin.State"):
    w: StateDict
    s_in: dict[int, Tensor]
    s_out: dict[int, Tensor]
    rounds: dict[int, int]


@final
class FedIN(Averaged[Options, Reply]):
    """w̄ ← layer-wise mean of the w_k;  S ← ``samples`` pairs (s_in, s_out) of the pool."""

    reply_type, state_type = Reply, State

    def prepare(self) -> None:
        super().prepare()
        self.s_in: dict[int, Tensor] = {}  #: the pool: of each client the latest batch
        self.s_out: dict[int, Tensor] = {}
        self.rounds: dict[int, int] = {}  #: the round that each comes from

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        task = self.task
        self.shapes: Shapes = common_shapes(
            [client.model for client in clients], task.shape, task.num_classes, stem=task.stem
        )

    def request(self, t: int) -> Callable[[Client], Request]:
        def to(client: Client) -> Request:
            s_in, s_out = self._sample(t, client.k) or (None, None)
            return Request(w=self.w, s_in=s_in, s_out=s_out)

        return to

    def _sample(self, t: int, k: int) -> tuple[Tensor, Tensor] | None:
        """S of round t for client k, from the stream "features"."""
        o, seed = self.options, self.task.seed
        if not o.others_only:
            return self.draw(o.samples, seeds.stream(seed, "features", t))
        return self.draw(o.samples, seeds.stream(seed, "features", k, t), without=k)

    def draw(
        self, size: int, generator: torch.Generator, *, without: int | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """``size`` pairs of the pool, each as likely as any other and none twice; all if there are
        fewer.

        ``without``: the client whose pairs are left out. None if there is no pair.
        """
        others = [k for k in sorted(self.rounds) if k != without]
        places = [(k, row) for k in others for row in range(len(self.s_in[k]))]
        if not places:
            return None
        chosen = torch.randperm(len(places), generator=generator)[:size].tolist()
        pairs = [places[i] for i in chosen]
        s_in, s_out = ([s[k][row] for k, row in pairs] for s in (self.s_in, self.s_out))
        return torch.stack(s_in), torch.stack(s_out)

    def put(self, t: int, k: int, s_in: Tensor, s_out: Tensor) -> None:
        """Take client k's batch of round t; the oldest makes room (ties: larger k)."""
        self.s_in[k], self.s_out[k], self.rounds[k] = s_in, s_out, t
        while len(self.rounds) > self.options.pool:
            gone = min(self.rounds, key=lambda k: (self.rounds[k], -k))
            del self.s_in[gone], self.s_out[gone], self.rounds[gone]

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        self._check_features("s_in", reply.s_in, self.shapes.s_in)
        self._check_features("s_out", reply.s_out, self.shapes.s_out)

    def _check_features(self, name: str, s: Tensor | None, shape: tuple[int, ...]) -> None:
        limit = self.config.train.batch_size
        if not self.options.in_training:
            if s is not None:
                raise ValueError(f"{name} came, but there is no IN training")
            return
        if s is None:
            raise ValueError(f"{name} is missing")
        if s.dtype != torch.float32 or tuple(s.shape[1:]) != shape:
            got = f"{str(s.dtype).removeprefix('torch.')}{list(s.shape)}"
            raise ValueError(f"{name} is {got}, expected float32{['n', *shape]}")
        if not 1 <= len(s) <= limit:
            raise ValueError(f"{name} has {len(s)} samples, a batch has 1 to {limit}")

    def cached(self, reply: Reply) -> Reply:
        return super().cached(reply).model_copy(update={"s_in": None, "s_out": None})

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        for client, reply in replies:
            if reply.s_in is not None and reply.s_out is not None:
                self.put(t, client.k, reply.s_in, reply.s_out)
        return {}
