"""DL-SH, server half: weigh the clients' predictions by their confidences and distil.

Contract: common/methods/dl_sh.py.
"""

from __future__ import annotations

from typing import final

import torch

from common import communication, quantise
from common.methods.dl_sh import Config, Down, Up
from server_app.distil.public_set import Distillation
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class DLSH(Distillation[Up]):
    """Y_g = Σ_i W_i M_i;  M_tgt ← M_tgt − η ∇ CE(Y_g, M_tgt(X_dist))."""

    answers = Up

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t)

    def check(self, client: Client, up: Up) -> None:
        options, dtype = self.config.method, self.config.wire.dtype
        quantise.check_dtype(up.theta, (self.samples, self.classes), dtype, "theta")
        span = torch.tensor([up.low, up.high, up.high - up.low])  # each as float32 has it
        if not up.low <= up.high or not torch.isfinite(span).all():
            raise ValueError(f"theta claims to reach from {up.low} to {up.high}")
        if options.exchange == "probs":
            if (up.low, up.high) != (0.0, 1.0):
                raise ValueError(f"theta is for {up.low} to {up.high}, probabilities for 0 to 1")
            quantise.check_rows(up.theta, dtype, "theta")
        self.check_confidence(up.w)

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        o: Config = self.config.method
        if o.targets == "labels":
            if self.labels is None:
                raise ValueError('targets = "labels", but the public set has no known classes')
            targets = self.labels
        else:
            predictions = [
                quantise.decode_probabilities(up.theta)
                if o.exchange == "probs"
                else quantise.decode(up.theta, up.low, up.high)
                for _, up in ups
            ]
            targets = self.ensemble(predictions, [up.w for _, up in ups], o.aggregation)
            if o.exchange == "logits":
                targets = torch.softmax(targets, dim=1)
        return mean_metrics(ups) | {"distill_loss": self.distil(t, targets)}

    def numbers(self, ups: list[tuple[Client, Up]]) -> int:
        w = 0 if self.config.method.confidence == "uniform" else self.samples
        return communication.dl_sh(self.samples, self.classes, w, len(ups))
