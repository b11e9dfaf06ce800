"""q-FFL, client half: FedAvg's, with the loss of the model received."""

from typing import final

from client_app.copy import Copy
from common.methods.qffl import Down, Options, Up
from common.task import evaluate


@final
class QFFL(Copy[Options, Down]):
    """F_k is the mean cross-entropy of w on the client's training samples."""

    receives, answers = Down, Up

    def more(self, down: Down) -> dict[str, object]:
        p = self.participant
        received = p.model(self.spec, down.w)
        return {"loss": evaluate(received, *p.train_set, self.task, bn="running").loss}
