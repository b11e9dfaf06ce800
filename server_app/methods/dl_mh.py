"""DL-MH, server half: map and mask, then weigh and distil.

Contract: common/methods/dl_mh.py.
"""

from __future__ import annotations

from typing import final

from common.methods.dl_mh import Down, Up
from server_app.distil.own_classes import check_schemed, targets, upload_numbers
from server_app.distil.public_set import Distillation
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class DLMH(Distillation[Up]):
    """Y_g = Σ_i W_i M_i', where M_i' is M_i in the places of its classes and 0 elsewhere."""

    answers = Up

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t)

    def check(self, client: Client, up: Up) -> None:
        check_schemed(self, up)

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        y_g = targets(self, [up for _, up in ups])
        return mean_metrics(ups) | {"distill_loss": self.distil(t, y_g)}

    def numbers(self, ups: list[tuple[Client, Up]]) -> int:
        return upload_numbers(self, [up for _, up in ups])
