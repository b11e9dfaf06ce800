"""FedIN, server half: average across architectures, keep features, hand out samples of them.

Contract: common/methods/fedin.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from common import seeds
from common.methods import fedin as contract
from common.models.classifier import Classifier
from common.records import Records, StateDict
from common.split import Shapes, common_shapes
from server_app.combine.across import Architectures
from server_app.distil.feature_pool import FeaturePool
from server_app.method import Method, Metrics, mean_metrics
from server_app.talk.census import Client


@final
class Memory(Records):
    models: dict[str, StateDict]
    s_in: dict[int, Tensor]
    s_out: dict[int, Tensor]
    rounds: dict[int, int]


@final
class FedIN(Method[contract.Up]):
    """w̄ ← layer-wise mean of the w_k;  S ← ``samples`` pairs (s_in, s_out) of the pool."""

    answers, keeps = contract.Up, Memory

    def prepare(self) -> None:
        super().prepare()
        self.options: contract.Config = self.config.method
        self.held = Architectures(self, self.options.across)
        self.pool = FeaturePool(self.options.pool)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.shapes: Shapes = common_shapes(
            [client.model for client in clients],
            self.dataset.shape,
            self.dataset.num_classes,
            stem=self.config.run.stem,
        )
        self.held.begin(clients)

    def down(self, t: int) -> Callable[[Client], contract.Down]:
        def to(client: Client) -> contract.Down:
            s_in, s_out = self._sample(t, client.k) or (None, None)
            w = self.held.weights(client.model)
            return contract.Down(experiment=self.experiment, t=t, w=w, s_in=s_in, s_out=s_out)

        return to

    def _sample(self, t: int, k: int) -> tuple[Tensor, Tensor] | None:
        """S of round t for client k, from the stream "features"."""
        o, seed = self.options, self.config.run.seed
        if not o.others_only:
            return self.pool.draw(o.samples, seeds.stream(seed, "features", t))
        return self.pool.draw(o.samples, seeds.stream(seed, "features", k, t), without=k)

    def check(self, client: Client, up: contract.Up) -> None:
        self.held.check(client, up.w)
        limit = self.config.train.batch_size
        for name, s, shape in (
            ("s_in", up.s_in, self.shapes.s_in),
            ("s_out", up.s_out, self.shapes.s_out),
        ):
            if not self.options.in_training:
                if s is not None:
                    raise ValueError(f"{name} came, but there is no IN training")
                continue
            if s is None:
                raise ValueError(f"{name} is missing")
            if s.dtype != torch.float32 or tuple(s.shape[1:]) != shape:
                got = f"{str(s.dtype).removeprefix('torch.')}{list(s.shape)}"
                raise ValueError(f"{name} is {got}, expected float32{['n', *shape]}")
            if not 1 <= len(s) <= limit:
                raise ValueError(f"{name} has {len(s)} samples, a batch has 1 to {limit}")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        self.held.step([(client, up.w) for client, up in ups], self.options)
        for client, up in ups:
            if up.s_in is not None and up.s_out is not None:
                self.pool.put(t, client.k, up.s_in, up.s_out)
        return mean_metrics(ups)

    def model(self) -> Classifier:
        return list(self.held.networks().values())[-1]

    def networks(self) -> dict[str, Classifier]:
        return self.held.networks()

    def ask(self) -> StateDict:
        return self.held.state_dict()

    def state(self) -> Memory:
        batches = self.pool.held
        return Memory(
            models=self.held.models,
            s_in={k: s_in for k, (s_in, _) in batches.items()},
            s_out={k: s_out for k, (_, s_out) in batches.items()},
            rounds=self.pool.rounds,
        )

    def restore(self, state: Memory) -> None:
        self.held.models = dict(state.models)
        self.pool.held = {k: (s_in, state.s_out[k]) for k, s_in in state.s_in.items()}
        self.pool.rounds = dict(state.rounds)
