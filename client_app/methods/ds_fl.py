"""DS-FL, client half: distil the previous round's targets, train, send predictions."""

from typing import final

from client_app.bases.own_model import OwnModel
from client_app.bases.public_set import SharedPublicSet
from common.exchange import quantise
from common.methods.ds_fl import Agreeing, Reply, Request
from common.models.classifier import Classifier
from common.techniques.public_set import digest, subset


@final
class DSFL(SharedPublicSet[Agreeing, Request], OwnModel[Agreeing, Request]):
    """Client that distils Ŷ on the previous A, trains on CE, and sends σ(f(θ_k; x)) for A_t."""

    def train(self, request: Request) -> Reply:
        p, t, net = self.participant, request.t, self.local(request.t)
        digested = self._digest(request, net)
        metrics = p.train(t, net.train().parameters(), p.supervised(net))
        self.keep(t, net)
        images = self.images(t) if request.rows is None else p.public[request.rows.long()]
        theta = self.task.objective.shares(self.task.logits(net, images))
        return Reply(
            metrics={**metrics, **digested}, theta=quantise.encode(theta, self.config.wire.dtype)
        )

    def _digest(self, request: Request, net: Classifier) -> dict[str, float]:
        """Train ``net`` on the newest Ŷ, if there is one; return scalars for the journal."""
        p = self.participant
        if request.y is None:
            return {}
        rows = request.y_rows
        if rows is None:
            rows = subset(self.task, request.since, len(p.public))
        learnt, images = self.task.objective, p.public[rows.long()]
        targets = quantise.decode_probabilities(request.y, one_each=learnt.one_each)
        loss, name = learnt.from_shares, ("digest", p.k)
        return {"digest_loss": digest(self.task, request.t, net, images, targets, loss, *name)}
