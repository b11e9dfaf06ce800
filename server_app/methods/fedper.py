"""FedPer, server half: average the shared part of networks. FedRep and FedBN use it too."""

from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.fedper import PartlyShared, Reply
from common.models.classifier import Classifier
from server_app.global_model import Averaged
from server_app.method import Client, Models


@final
class FedPer(Averaged[PartlyShared, Reply]):
    """Server with φ ← Σ_k p_k φ_k, for each architecture; it has no whole model."""

    def prepare(self) -> None:
        self.names: dict[str, list[str]] = {}  #: entries that travel, by architecture
        super().prepare()
        self.w = tree.cut(self.w, self.shared(self.global_spec))

    def shared(self, spec: str) -> list[str]:
        """Return the entries of an architecture that travel."""
        if spec not in self.names:
            self.names[spec] = self.options.shared(self.task.without_values(spec))
        return self.names[spec]

    def initial(self, spec: str) -> StateDict:
        return tree.cut(super().initial(spec), self.shared(spec))

    def check(self, client: Client, reply: Reply) -> None:
        spec = self.trains(client)
        expected = tree.cut(self.task.expected(spec), self.shared(spec))
        tree.check_like(reply.w, expected, f"w ({spec})")

    def warning(self) -> str:
        trained = sorted({self.trains(client) for client in self.clients})
        lines = (self.options.warning(self.task.without_values(spec)) for spec in trained)
        return "; ".join(filter(None, lines))

    # Clients complete φ to a whole model, so only they can score.

    def model(self) -> None:
        return None

    def classifiers(self, models: Models) -> dict[str, Classifier]:
        return {}

    def parts_to_score(self) -> Models:
        return self.by_architecture(self.models)

    def scored_by(self, client: Client) -> str:
        return self.trains(client)
