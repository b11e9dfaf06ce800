"""Clients that learn from what the server gives back: DL-SH with an incentive, I-DL-MH."""

from abc import ABC, abstractmethod
from typing import TypeVar, final

import torch.nn.functional as F
from torch import Tensor

from client_app.bases.public_set import LocalModel, Teacher
from client_app.handler import D
from client_app.participant import upload
from common.exchange import protocol, quantise
from common.exchange.records import Records, StateDict
from common.methods import dl_sh, i_dl_mh
from common.models.classifier import Classifier
from common.models.masked import narrowed, widened
from common.techniques.incentive import IncentiveReply, IncentiveRequest

R = TypeVar("R", dl_sh.Options, i_dl_mh.Options)


@final
class RewardedModel(Records, kind="incentive.Rewarded"):
    """M_i after the incentive of round t, its head as wide as the incentive left it."""

    t: int
    w: StateDict


class RewardedClient(Teacher[R, D], ABC):
    """After the server's distillation it goes on from its M_i with a lesson about X_dist."""

    second_request_type = IncentiveRequest

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the incentive is all of θ and widens the head."""

    def second(self, request: protocol.Request) -> IncentiveReply:
        """I-DL-MH's Algorithm 6: further training on X_dist with what the server says about it."""
        assert isinstance(request, IncentiveRequest)
        p, t = self.participant, request.t
        local = p.load_state(t + 1, LocalModel)
        if local is None or local.t != t:
            raise ValueError(f"there is no model of round {t} to go on from")
        before = p.test_accuracy(self.masked(self.network(local.w)))
        net, targets = self._lesson(request, local.w)
        columns = self.task.num_classes if self.full else len(self.d)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, :columns], y)

        metrics = p.train_on(
            t, net, p.public, targets, loss, times=self.options.incentive_epochs, name="incentive"
        )
        p.save_state(t, RewardedModel(t=t, w=upload(net)))
        after = p.test_accuracy(net if self.full else self.masked(net))
        return IncentiveReply(metrics=metrics, before=before, after=after)

    def _lesson(self, request: IncentiveRequest, own: StateDict) -> tuple[Classifier, Tensor]:
        """The student and its targets: labels [N] among d, or distributions [N, C]."""
        p = self.participant
        if not self.full:
            assert request.y is not None, "labels"
            return self.network(own), request.y.long()
        assert request.theta is not None, "predictions"
        fresh = upload(p.model(p.spec, part="incentive"))
        net = p.model(p.spec, widened(own, fresh, self.d))
        return net, quantise.decode_probabilities(request.theta)

    def _rewarded(self, t: int) -> StateDict | None:
        """What the incentive before round t left, if no training came after it."""
        local, rewarded = (
            self.participant.load_state(t, LocalModel),
            self.participant.load_state(t, RewardedModel),
        )
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
