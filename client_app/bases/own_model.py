"""A client with a private model of its own, which it keeps for good and which never is replaced."""

from abc import ABC, abstractmethod
from typing import TypeVar, final

import torch
from torch import Tensor

from client_app import reuse
from client_app.bases.global_copy import cross_entropy
from client_app.handler import D, Handler, O
from client_app.participant import upload
from common.exchange.protocol import ModelReply, ModelRequest
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.training.fit import Loss

M = TypeVar("M", bound=ModelRequest)


@final
class ClientState(Records, kind="private.Memory"):
    """What a client keeps for good."""

    local: StateDict  #: its own model


class OwnModel(Handler[O, D], ABC):
    """Holds a model of the client's own architecture."""

    def local(self, t: int) -> Classifier:
        """The private model as round t finds it."""
        memory = self.participant.load_state(t, ClientState)
        return self.participant.model(self.spec, memory.local if memory else None)

    def keep(self, t: int, local: Classifier) -> StateDict:
        """Keep the private model as of round t; its weights as they travel."""
        weights = upload(local)
        self.participant.save_state(t, ClientState(local=weights))
        return weights

    def own_model(self, t: int) -> Classifier | None:
        return self.local(t + 1)

    def learn(self, t: int, net: Classifier) -> dict[str, float]:
        """CE(f(θ_k; x), y) in round t; scalars for the journal."""
        p, loss = self.participant, cross_entropy(net)
        return reuse.once(p, t, net, "all", lambda: p.train(t, net.parameters(), loss))


class Mutual(OwnModel[O, M], ABC):
    """Deep mutual learning of the private model and a copy of the global one, which goes back."""

    def train(self, request: M) -> ModelReply:
        p = self.participant
        local, copy = self.local(request.t).train(), p.model(p.global_spec, request.w).train()
        metrics = self.learn_mutually(request.t, local, copy)
        self.keep(request.t, local)
        return ModelReply(metrics=metrics, w=upload(copy))

    @abstractmethod
    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The two models' losses from their logits [n, C] before either step; each detaches the
        other's."""

    def learn_mutually(self, t: int, local: Classifier, copy: Classifier) -> dict[str, float]:
        """Round t's training of both; scalars for the journal."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, shared = self.losses(local(x), copy(x), y)
            return own + shared

        # The teachers are detached, so one backward of the sum is one of each loss.
        return self.participant.train(t, [*local.parameters(), *copy.parameters()], loss)


def frozen_logits(teacher: Classifier) -> Loss:
    """A frozen network's logits, without gradients."""
    return torch.no_grad()(lambda x: teacher(x))
