"""I-DL-MH, server half: DL-MH's, then each client's share of what the server has learnt.

Contract: common/methods/i_dl_mh.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from flwr.app import Message
from torch import Tensor

from common import communication, quantise
from common.ensemble.schema import nearest_class
from common.methods.i_dl_mh import Config, Down, Gain, Reward, Up
from server_app.distil.own_classes import check_schemed, targets, upload_numbers
from server_app.distil.public_set import Distillation
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client
from server_app.talk.exchange import Failure
from server_app.talk.replies import judge, open_reply

SMALL = 256
"""Up to so many classes a label travels as one byte."""


@final
class IDLMH(Distillation[Up]):
    """As DL-MH; then y_k = argmax_{j∈d} θ[k][j], or all of θ, to every client that wants it."""

    answers = Up

    def prepare(self) -> None:
        super().prepare()
        self.theta: Tensor | None = None  #: θ of this round, between its two exchanges

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t)

    def check(self, client: Client, up: Up) -> None:
        check_schemed(self, up)

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        y_g = targets(self, [up for _, up in ups])
        metrics = mean_metrics(ups) | {"distill_loss": self.distil(t, y_g)}
        self.theta = y_g if self.config.method.reward == "ensemble" else self.predictions()
        return metrics

    def second(self, t: int, ups: list[tuple[Client, Up]]) -> dict[int, Message]:
        chosen = [(client, self._reward(t, up)) for client, up in ups if up.incentive]
        packed = {client.k: (client, reward.pack()) for client, reward in chosen}
        self._count("down", [content for _, content in packed.values()])
        return {
            k: Message(content, client.node, "train.second", group_id=str(t))
            for k, (client, content) in packed.items()
        }

    def _reward(self, t: int, up: Up) -> Reward:
        """Algorithm 5, lines 9-36, or everything."""
        assert self.theta is not None
        o: Config = self.config.method
        y = theta = None
        if o.incentive == "masked":
            small = len(up.d) <= SMALL
            y = nearest_class(self.theta, up.d).to(torch.uint8 if small else torch.int16)
        else:
            theta = quantise.encode(self.theta.clamp(0, 1), self.config.wire.dtype)
        return Reward(experiment=self.experiment, t=t, y=y, theta=theta)

    def receive_second(
        self, t: int, replies: Mapping[int, Message]
    ) -> tuple[dict[str, Any], list[Failure]]:
        self._count("up", [reply.content for reply in replies.values()])
        gains: dict[str, dict[str, float]] = {}

        def accept(k: int, reply: Message) -> None:
            gain = open_reply(reply, Gain, self.config)
            self._check_identity(gain, k, t)
            gains[str(k)] = {"before": gain.before, "after": gain.after}

        failures = judge(t, replies, accept, "gain")
        if not gains:
            return {}, failures
        means = {
            name: sum(gain[name] for gain in gains.values()) / len(gains)
            for name in ("before", "after")
        }
        return {"incentive": {**means, "clients": gains}}, failures

    def numbers(self, ups: list[tuple[Client, Up]]) -> int:
        """Equation 10 for what goes up, and section 5.3's for what comes down."""
        theta = 1 if self.config.method.incentive == "masked" else self.classes
        wanting = sum(up.incentive for _, up in ups)
        uploaded = upload_numbers(self, [up for _, up in ups])
        return uploaded + communication.i_dl_mh(self.samples, theta, wanting)
