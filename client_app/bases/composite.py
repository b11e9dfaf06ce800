"""Base class of clients that predict with their private model and a shared network together."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, final

from client_app.bases.own_model import OwnModel
from client_app.handler import O
from client_app.participant import upload
from common import seeds
from common.exchange.protocol import ModelReply, ModelRequest, ScoreRequest
from common.exchange.records import Records, StateDict
from common.exchange.tree import cut
from common.models.classifier import Classifier
from common.models.composite import Composite
from common.training.fit import Loss

N = TypeVar("N", bound=Composite)


@final
class JointState(Records, kind="composite.Memory"):
    """State of a client beside its private model."""

    joint: StateDict  #: weights of the private module that joins the networks


class CompositeClient(OwnModel[O, ModelRequest], ABC, Generic[O, N]):
    """Client that trains its private network and module with a copy of w, and sends the copy.

    It scores the newest w with its own parts as its own model. ``train.clip`` limits the gradients
    of the private network, the copy and the private module separately.
    """

    @abstractmethod
    def compose(self, own: Classifier, shared: Classifier) -> N:
        """Return the predictor of both networks with a newly drawn module ``joint``."""

    @abstractmethod
    def loss(self, net: N) -> Loss:
        """Return the function of a batch (x, y) that the training of ``net`` minimises."""

    def train(self, request: ModelRequest) -> ModelReply:
        p, t = self.participant, request.t
        net = self.composite(t, request.w)
        net.train()
        groups = [{"params": list(m.parameters())} for m in (net.own, net.shared, net.joint)]
        metrics = p.train(t, groups, self.loss(net))
        self.keep(t, net.own)
        p.save_state(t, JointState(joint=upload(net.joint)))
        return ModelReply(metrics=metrics, w=cut(upload(net.shared), request.w))

    def composite(self, t: int, w: StateDict) -> N:
        """Return the predictor at the start of round t, with the shared weights ``w``."""
        p = self.participant
        own, shared = self.local(t), self.small(w)
        with seeds.scope(self.task.seed, "init", "joint", "client", p.k):
            net = self.compose(own, shared)
        if (state := p.load_state(t, JointState)) is not None:
            net.joint.load_state_dict(state.joint)
        return net.to(p.device)

    def small(self, w: StateDict) -> Classifier:
        """Return the shared network with the received weights ``w``."""
        return self.participant.model(self.participant.global_spec, w)

    def own_model(self, t: int) -> None:
        """Return None: the client scores its own parts with the newest w."""

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        return self.composite(request.t + 1, w)
