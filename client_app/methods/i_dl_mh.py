"""I-DL-MH, client half: DL-MH's, and afterwards a lesson from the server.

Contract: common/methods/i_dl_mh.py.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.participant import upload
from client_app.teacher import Local, Teacher
from client_app.train_on import train_on
from common import quantise
from common.methods.i_dl_mh import Config, Down, Gain, Reward, Up
from common.models.classifier import Classifier
from common.models.masked import narrowed, widened
from common.records import Records, StateDict
from common.scoring import evaluate


@final
class Rewarded(Records):
    """M_i after the incentive of round t, its head as wide as the incentive left it."""

    t: int
    w: StateDict


@final
class IDLMH(Teacher[Down]):
    receives, receives_second = Down, Reward

    @property
    def d(self) -> list[int]:
        return [c for c, count in enumerate(self.participant.counts) if count]

    @property
    def wants(self) -> bool:
        """The node's ``incentive``, else the run's ``opt-in``."""
        p = self.participant
        wish = p.node.get("incentive", p.config.method.opt_in)
        if not isinstance(wish, bool):
            raise ValueError(f"node config incentive = {wish!r}; it must be true or false")
        return wish

    def admit(self) -> None:
        super().admit()
        _ = self.wants

    def train(self, down: Down) -> Up:
        p = self.participant
        net, metrics = self.learn(down.t)
        theta, w = self.probabilities(net), self.confidence(down.t, net)
        return Up(
            experiment=p.experiment,
            t=down.t,
            k=p.k,
            metrics=metrics,
            theta=theta,
            w=w,
            d=self.d,
            incentive=self.wants,
        )

    def second(self, down: Reward) -> Gain:
        """Algorithm 6: further training on X_dist with what the server says about it."""
        p, t = self.participant, down.t
        options: Config = p.config.method
        local = p.recall(t + 1, Local)
        if local is None or local.t != t:
            raise ValueError(f"there is no model of round {t} to go on from")
        before = self.test_accuracy(self.network(local.w))
        net, targets = self._lesson(down, local.w)
        columns = p.dataset.num_classes if options.incentive == "full" else len(self.d)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, :columns], y)

        epochs = options.incentive_epochs
        metrics = train_on(p, net, p.public, targets, loss, epochs=epochs, name="incentive", t=t)
        p.remember(t, Rewarded(t=t, w=upload(net)))
        after = self._accuracy(net)
        return Gain(
            experiment=p.experiment, t=t, k=p.k, metrics=metrics, before=before, after=after
        )

    def _lesson(self, down: Reward, own: StateDict) -> tuple[Classifier, Tensor]:
        """The student and its targets: labels [N] among d, or distributions [N, C]."""
        p = self.participant
        if p.config.method.incentive == "masked":
            if down.y is None:
                raise ValueError("the incentive brings no labels")
            return self.network(own), down.y.long()
        if down.theta is None:
            raise ValueError("the incentive brings no predictions")
        fresh = upload(p.model(p.spec, part="incentive"))
        net = p.model(p.spec, widened(own, fresh, self.d))
        return net, quantise.decode_probabilities(down.theta)

    def _accuracy(self, net: Classifier) -> float:
        if self.participant.config.method.incentive == "masked":
            return self.test_accuracy(net)
        data = self.participant.dataset
        return evaluate(net, data.x_test, data.y_test, data, self.participant.config).accuracy

    def start(self, t: int) -> StateDict | None:
        """The newer of what the training and the incentive of an earlier round left."""
        local, rewarded = self.participant.recall(t, Local), self.participant.recall(t, Rewarded)
        if rewarded is not None and local is not None and rewarded.t >= local.t:
            full = self.participant.config.method.incentive == "full"
            return narrowed(rewarded.w, self.d) if full else rewarded.w
        return local.w if local else None

    def own_model(self, t: int) -> Classifier | None:
        p = self.participant
        rewarded = p.recall(t + 1, Rewarded)
        local = p.recall(t + 1, Local)
        if rewarded and local and rewarded.t >= local.t and p.config.method.incentive == "full":
            return p.model(p.spec, rewarded.w)
        return super().own_model(t)
