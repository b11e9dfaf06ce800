"""DL-SH, server half: weigh the clients' predictions by their confidences and distil."""

from typing import final

import torch
from torch import Tensor

from common.incentive import Gain
from common.methods.dl_sh import Options, Up
from common.protocol import Down
from server_app.distil.public_set import PublicSet
from server_app.method import Client, Metrics, Ups


@final
class DLSH(PublicSet[Options, Up]):
    """Y_g = Σ_i W_i M_i;  M_tgt ← M_tgt − η ∇ CE(Y_g, M_tgt(X_dist))."""

    answers, gains = Up, Gain

    def check(self, client: Client, up: Up) -> None:
        shape, dtype = (self.samples, self.classes), self.config.wire.dtype
        up.check_predictions(shape, dtype, probabilities=self.options.exchange == "probs")
        self.check_confidence(up.w)

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        targets = self._targets(ups)
        metrics = {"distill_loss": self.distil(t, targets)}
        if self.options.incentive != "none":
            ensemble = self.options.incentive == "ensemble"
            self.theta = targets if ensemble else self.predicted(self.public)
        return metrics

    def second(self, t: int, ups: Ups[Up]) -> dict[int, Down]:
        if self.options.incentive == "none":
            return {}
        return {client.k: self.reward(self.theta) for client in ups.clients}

    def _targets(self, ups: Ups[Up]) -> Tensor:
        """Y_g [N, C], or the true classes [N]."""
        if self.options.targets == "labels":
            if self.labels is None:
                raise ValueError('targets = "labels", but the public set has no known classes')
            return self.labels
        w = [up.w for _, up in ups]
        if self.options.exchange == "probs":
            return self.ensemble([up.said(probabilities=True) for _, up in ups], w)
        logits = [up.said(probabilities=False) for _, up in ups]
        return torch.softmax(self.ensemble(logits, w), dim=1)

    def numbers(self, ups: Ups[Up]) -> int:
        """DL-MH's equation 9: all logits and the confidences up; with an incentive θ down."""
        w = self.config.confidence.kind != "uniform"
        back = self.classes if self.options.incentive != "none" else 0
        return self.samples * (self.classes + w + back) * len(ups)
