"""I-DL-MH, server half: DL-MH's, then each client's share of what the server has learnt."""

from typing import final

import torch

from common.ensemble import nearest_class
from common.incentive import Gain, Reward
from common.methods.i_dl_mh import Options, Up
from common.protocol import Down
from server_app.distil.public_set import OwnClasses
from server_app.method import Metrics, Ups

SMALL = 256
"""Up to so many classes a label travels as one byte."""


@final
class IDLMH(OwnClasses[Options, Up]):
    """As DL-MH; then y_k = argmax_{j∈d} θ[k][j], or all of θ, to every client that wants it."""

    answers, gains = Up, Gain

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        metrics = super().step(t, ups)
        ensemble = self.options.reward == "ensemble"
        self.theta = self.targets if ensemble else self.predicted(self.public)
        return metrics

    def second(self, t: int, ups: Ups[Up]) -> dict[int, Down]:
        return {client.k: self._lesson(up) for client, up in ups if up.incentive}

    def _lesson(self, up: Up) -> Reward:
        """Algorithm 5, lines 9-36, or everything."""
        if self.options.incentive == "masked":
            dtype = torch.uint8 if len(up.d) <= SMALL else torch.int16
            return Reward(y=nearest_class(self.theta, up.d).to(dtype), theta=None)
        return self.reward(self.theta)

    def numbers(self, ups: Ups[Up]) -> int:
        """Equation 10 for what goes up; down a label of each sample, or all of θ (section 5.3)."""
        theta = 1 if self.options.incentive == "masked" else self.classes
        wanting = sum(up.incentive for _, up in ups)
        return super().numbers(ups) + self.samples * theta * wanting
