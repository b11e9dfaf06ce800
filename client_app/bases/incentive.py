"""Base class of clients with a second exchange (incentive): DL-SH with an incentive, I-DL-MH."""

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
    """State of a client: M_i after the incentive of round t, with the head of that model."""

    t: int
    w: StateDict


class RewardedClient(Teacher[R, D], ABC):
    """Client that trains M_i further on X_dist after the server's distillation."""

    second_request_type = IncentiveRequest

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the client receives all of θ, which needs a head for all classes."""

    def second(self, request: protocol.Request) -> IncentiveReply:
        """Train M_i on X_dist with the server's targets (I-DL-MH, Algorithm 6)."""
        assert isinstance(request, IncentiveRequest)
        p, t = self.participant, request.t
        local = p.load_state(t + 1, LocalModel)
        if local is None or local.t != t:
            raise ValueError(f"there is no model of round {t} to continue from")
        before = p.whole_test(self.masked(self.network(local.w)))["test_accuracy"]
        net, targets = self._student_and_targets(request, local.w)
        columns = self.task.num_classes if self.full else len(self.d)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, :columns], y)

        metrics = p.train_on(
            t, net, p.public, targets, loss, times=self.options.incentive_epochs, name="incentive"
        )
        p.save_state(t, RewardedModel(t=t, w=upload(net)))
        after = p.whole_test(net if self.full else self.masked(net))["test_accuracy"]
        return IncentiveReply(metrics=metrics, before=before, after=after)

    def _student_and_targets(
        self, request: IncentiveRequest, w: StateDict
    ) -> tuple[Classifier, Tensor]:
        """Return M_i with weights w, and targets: labels [N] in d or distributions [N, C]."""
        p = self.participant
        if not self.full:
            assert request.y is not None, "labels"
            return self.network(w), request.y.long()
        assert request.theta is not None, "predictions"
        new = upload(p.model(p.spec, part="incentive"))
        net = p.model(p.spec, widened(w, new, self.d))
        return net, quantise.decode_probabilities(request.theta)

    def _rewarded(self, t: int) -> StateDict | None:
        """Return M_i after the last incentive before round t; None if it was trained since."""
        local, rewarded = (
            self.participant.load_state(t, LocalModel),
            self.participant.load_state(t, RewardedModel),
        )
        newer = rewarded is not None and local is not None and rewarded.t >= local.t
        return rewarded.w if newer and rewarded else None

    def start(self, t: int) -> StateDict | None:
        """Return the newest M_i before round t, after training or after an incentive."""
        rewarded = self._rewarded(t)
        if rewarded is None:
            return super().start(t)
        return narrowed(rewarded, self.d) if self.full else rewarded

    def own_model(self, t: int) -> Classifier | None:
        rewarded = self._rewarded(t + 1)
        if rewarded is not None and self.full:
            return self.participant.model(self.participant.spec, rewarded)
        return super().own_model(t)
