"""Halfway, server half: the mean, taken part of the way."""

from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from lab.halfway.contract import Options, Reply
from server_app.global_model import Averaged
from server_app.method import Replies


@final
class Halfway(Averaged[Options, Reply]):
    """w ← (1 − s) w + s Σ_{k∈S_t} p_k w_k."""

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        s = self.options.step
        return tree.mean([previous, super().combine(replies, previous)], [1 - s, s])
