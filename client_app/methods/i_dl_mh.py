"""I-DL-MH, client half: DL-MH's, and afterwards a lesson from the server."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.participant import upload
from client_app.public_set import Local, Teacher
from common import protocol, quantise
from common.methods.i_dl_mh import Down, Gain, Options, Reward, Up
from common.models.classifier import Classifier
from common.models.masked import narrowed, widened
from common.records import Records, StateDict


@final
class Rewarded(Records):
    """M_i after the incentive of round t, its head as wide as the incentive left it."""

    t: int
    w: StateDict


@final
class IDLMH(Teacher[Options, Down]):
    """DL-MH's client, which may want the incentive."""

    receives, receives_second = Down, Reward

    @property
    def wants(self) -> bool:
        """The node's ``incentive``, else the run's ``opt-in``."""
        wish = self.participant.node.get("incentive", self.options.opt_in)
        if not isinstance(wish, bool):
            raise ValueError(f"node config incentive = {wish!r}; it must be true or false")
        return wish

    @property
    def full(self) -> bool:
        """Whether the incentive is all of θ and widens the head."""
        return self.options.incentive == "full"

    def admit(self) -> None:
        super().admit()
        _ = self.wants

    def train(self, down: Down) -> Up:
        net, metrics = self.learn(down.t)
        theta, w = self.probabilities(net), self.confidence(down.t, net)
        return Up(metrics=metrics, theta=theta, w=w, d=self.d, incentive=self.wants)

    def second(self, down: protocol.Down) -> Gain:
        """Algorithm 6: further training on X_dist with what the server says about it."""
        assert isinstance(down, Reward)
        p, t = self.participant, down.t
        local = p.recall(t + 1, Local)
        if local is None or local.t != t:
            raise ValueError(f"there is no model of round {t} to go on from")
        before = p.test_accuracy(self.masked(self.network(local.w)))
        net, targets = self._lesson(down, local.w)
        columns = self.task.num_classes if self.full else len(self.d)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, :columns], y)

        times = self.options.incentive_epochs
        metrics = p.train_on(t, net, p.public, targets, loss, times=times, name="incentive")
        p.remember(t, Rewarded(t=t, w=upload(net)))
        after = p.test_accuracy(net if self.full else self.masked(net))
        return Gain(metrics=metrics, before=before, after=after)

    def _lesson(self, down: Reward, own: StateDict) -> tuple[Classifier, Tensor]:
        """The student and its targets: labels [N] among d, or distributions [N, C]."""
        p = self.participant
        if not self.full:
            if down.y is None:
                raise ValueError("the incentive brings no labels")
            return self.network(own), down.y.long()
        if down.theta is None:
            raise ValueError("the incentive brings no predictions")
        fresh = upload(p.model(p.spec, part="incentive"))
        net = p.model(p.spec, widened(own, fresh, self.d))
        return net, quantise.decode_probabilities(down.theta)

    def _rewarded(self, t: int) -> StateDict | None:
        """What the incentive before round t left, if no training came after it."""
        local, rewarded = self.participant.recall(t, Local), self.participant.recall(t, Rewarded)
        newer = rewarded is not None and local is not None and rewarded.t >= local.t
        return rewarded.w if newer and rewarded else None

    def start(self, t: int) -> StateDict | None:
        """The newer of what the training and the incentive of an earlier round left."""
        rewarded = self._rewarded(t)
        if rewarded is None:
            return super().start(t)
        return narrowed(rewarded, self.d) if self.full else rewarded

    def own_model(self, t: int) -> Classifier | None:
        rewarded = self._rewarded(t + 1)
        if rewarded is not None and self.full:
            return self.participant.model(self.participant.spec, rewarded)
        return super().own_model(t)
