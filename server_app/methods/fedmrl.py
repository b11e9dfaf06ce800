"""FedMRL, server half: average the small networks."""

from typing import final

from common.methods.fedmrl import Options, Reply
from server_app.global_model import PredictorPart
from server_app.method import Models


@final
class FedMRL(PredictorPart[Options, Reply]):
    """Server with w ← 1/|S_t| Σ_k w_k."""

    def further(self) -> dict[str, Models]:
        """Return the small head as a model without weights of its own."""
        return {"small": {self.global_spec: {}}}
