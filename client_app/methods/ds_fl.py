"""DS-FL, client half: digest what was agreed on, train, speak."""

from typing import final

import torch

from client_app.copy import cross_entropy
from client_app.private import Private
from client_app.public_set import Seeing
from common import quantise
from common.losses.distillation import kl_from
from common.methods.ds_fl import Agreeing, Down, Up
from common.models.classifier import Classifier
from common.public_set import digest, subset


@final
class DSFL(Seeing[Agreeing, Down], Private[Agreeing, Down]):
    """KL(Ŷ ‖ σ(f(θ_k; x))) over A of the round before; CE; σ(f(θ_k; x)) over A_t."""

    receives = Down

    def train(self, down: Down) -> Up:
        p, t, net = self.participant, down.t, self.local(down.t)
        digested = self._learn(down, net)
        metrics = p.train(t, net.train().parameters(), cross_entropy(net))
        self.keep(t, net)
        images = self.images(t) if down.rows is None else p.public[down.rows.long()]
        theta = torch.softmax(self.task.logits(net, images), dim=1)
        return Up(
            metrics={**metrics, **digested}, theta=quantise.encode(theta, self.config.wire.dtype)
        )

    def _learn(self, down: Down, net: Classifier) -> dict[str, float]:
        """Digest the newest Ŷ, if there is one."""
        p = self.participant
        if down.y is None:
            return {}
        rows = down.y_rows
        if rows is None:
            rows = subset(self.task, down.since, len(p.public))
        targets, images = quantise.decode_probabilities(down.y), p.public[rows.long()]
        loss = digest(
            self.task, down.t, net, images, targets, lambda z, y: kl_from(y, z), "digest", p.k
        )
        return {"digest_loss": loss}
