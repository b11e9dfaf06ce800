"""Replies of clients with heads of their own: checked, mapped, masked, combined (DL-MH)."""

from abc import ABC
from typing import TypeVar

import torch
from torch import Tensor

from common import quantise
from common.ensemble import by_cross_entropy, by_factorisation, check_schema, scatter
from common.methods.dl_mh import Schemed
from server_app.distil.public_set import D, PublicSet
from server_app.method import Client, Metrics, Ups

S = TypeVar("S", bound=Schemed)


class OwnClasses(PublicSet[D, S], ABC):
    """Y_g = Σ_i W_i M_i', where M_i' is M_i in the places of its classes and 0 elsewhere."""

    def check(self, client: Client, up: S) -> None:
        check_schema(up.d, self.classes)
        dtype = self.config.wire.dtype
        quantise.check_dtype(up.theta, (self.samples, len(up.d)), dtype, "theta")
        quantise.check_rows(up.theta, dtype, "theta")
        self.check_confidence(up.w)

    def step(self, t: int, ups: Ups[S]) -> Metrics:
        self.targets = self._targets(ups)
        return {"distill_loss": self.distil(t, self.targets)}

    def _targets(self, ups: Ups[S]) -> Tensor:
        """Y_g [N, C]."""
        o = self.config.ensemble
        predictions = [
            scatter(quantise.decode_probabilities(up.theta), up.d, self.classes) for _, up in ups
        ]
        if not o.aggregation.startswith("uhc"):
            return self.ensemble(predictions, [up.w for _, up in ups])
        held = torch.zeros(len(ups), self.classes, dtype=torch.bool)
        for row, (_, up) in zip(held, ups, strict=True):
            row[torch.tensor(up.d)] = True
        p = torch.stack(predictions)
        if o.aggregation == "uhc-ce":
            return by_cross_entropy(p, held, o.uhc_steps, o.uhc_lr)
        return by_factorisation(p, held, o.uhc_steps)

    def numbers(self, ups: Ups[S]) -> int:
        """Equation 10: logits of a client's own classes, its confidences and its schema."""
        N = self.samples
        return sum(N * (len(up.d) + (up.w is not None)) + len(up.d) for _, up in ups)
