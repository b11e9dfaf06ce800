"""Halfway, server half: the mean, taken part of the way."""

from typing import final

from common import tree
from common.records import StateDict
from lab.halfway.contract import Options, Up
from server_app.global_model import Averaged
from server_app.method import Ups


@final
class Halfway(Averaged[Options, Up]):
    """w ← (1 − s) w + s Σ_{k∈S_t} p_k w_k."""

    answers = Up

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        s = self.options.step
        return tree.mean([previous, super().combine(ups, previous)], [1 - s, s])
