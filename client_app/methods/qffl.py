"""q-FFL, client half: FedAvg's client, which also sends the loss of the received model."""

from typing import final

from client_app.bases.global_copy import GlobalCopy
from common.methods.qffl import Options, Reply, Request
from common.training.task import evaluate


@final
class QFFL(GlobalCopy[Options, Request]):
    """Client that sends w_k and F_k, the mean cross-entropy of w on its training samples."""

    reply_type = Reply

    def more(self, request: Request) -> dict[str, object]:
        p = self.participant
        received = p.model(self.spec, request.w)
        return {"loss": evaluate(received, *p.train_set, self.task, bn="running").loss}
