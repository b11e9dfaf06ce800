"""pFedMoE, server half: average the small extractors."""

from typing import final

from common.exchange import tree
from common.methods.pfedmoe import Options, Reply, extractor
from server_app.global_model import PredictorPart
from server_app.method import Client


@final
class PFedMoE(PredictorPart[Options, Reply]):
    """Server with w ← Σ_k p_k w_k of the small network without its head."""

    def prepare(self) -> None:
        super().prepare()
        self.w = extractor(self.w)

    def check(self, client: Client, reply: Reply) -> None:
        tree.check_like(reply.w, self.w, "w")
