"""FedNova, server half: the mean of the clients' steps, each normalised by its length."""

from __future__ import annotations

import math
from typing import final

import torch

from common import tree
from common.methods.fednova import Options, Up
from common.records import StateDict
from server_app.combine.mean import average
from server_app.global_model import Averaged
from server_app.method import Ups


@final
class FedNova(Averaged[Options, Up]):
    """w ← w − (Σ_k p_k a_k) Σ_k p_k (w − w_k) / a_k."""

    answers = Up

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        a = [self.task.effective_steps(n) for n in ups.sizes]
        if min(a) == max(a):
            return super().combine(ups, previous)
        options, parameters = self.config.average, tree.parameters_only(self.net)
        p = ups.sizes if options.weights == "samples" else [1] * len(ups)
        mean = math.fsum(p_k * a_k for p_k, a_k in zip(p, a, strict=True)) / sum(p)

        def normalised(w_k: StateDict, factor: float) -> StateDict:
            scaled = dict(w_k)
            for name in parameters:
                w = previous[name].to(torch.float64)
                scaled[name] = (w + factor * (w_k[name] - w)).to(w_k[name].dtype)
            return scaled

        states = (normalised(up.w, mean / a_k) for (_, up), a_k in zip(ups, a, strict=True))
        return average(states, ups.sizes, previous, options, self.net)
