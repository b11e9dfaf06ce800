"""Base classes of clients with a private model, stored across rounds and never replaced.

``OwnModel`` stores and trains it, ``OwnFeatures`` gives it the server's head, ``Mutual`` trains it
together with a copy of the global model.
"""

from abc import ABC, abstractmethod
from typing import TypeVar, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from client_app import reuse
from client_app.handler import D, Handler, O
from client_app.participant import upload
from common.exchange.protocol import ModelReply, ModelRequest, ScoreRequest
from common.exchange.records import Records, StateDict
from common.models.classifier import Classifier
from common.training.fit import Loss

M = TypeVar("M", bound=ModelRequest)


@final
class ClientState(Records, kind="private.Memory"):
    """State of a client with a private model.

    Files of saved state contain ``kind``, so it keeps an earlier name of this class.
    """

    local: StateDict  #: weights of the private model


class OwnModel(Handler[O, D], ABC):
    """Client with a private model of its own architecture."""

    def local(self, t: int) -> Classifier:
        """Return the private model at the start of round t, initialised at the first one."""
        state = self.participant.load_state(t, ClientState)
        return self.participant.model(self.spec, state.local if state else None)

    def keep(self, t: int, local: Classifier) -> StateDict:
        """Store the private model of round t; return its weights for a message."""
        weights = upload(local)
        self.participant.save_state(t, ClientState(local=weights))
        return weights

    def own_model(self, t: int) -> Classifier | None:
        """Return the private model after round t, which the client scores."""
        return self.local(t + 1)

    def learn(self, t: int, net: Classifier) -> dict[str, float]:
        """Train ``net`` on the samples alone in round t; return scalars for the journal.

        The training depends on labels alone, so the runs of a table can share its
        result (``reuse.once``).
        """
        p, loss = self.participant, self.participant.supervised(net)
        return reuse.once(p, t, net, "all", lambda: p.train(t, net.parameters(), loss))


class OwnFeatures(OwnModel[O, M], ABC):
    """Client whose model has its own features and the server's newest head."""

    def own_model(self, t: int) -> None:
        """Return None: the client scores its features with the server's newest head."""

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        """Return the private features after the round of ``request``, with the head ``w``."""
        return self.with_head(request.t + 1, w)

    def with_head(self, t: int, head: StateDict) -> Classifier:
        """Return the private model at the start of round t, with the weights ``head``."""
        net = self.local(t)
        net.head.load_state_dict(head)
        return net


class Mutual(OwnModel[O, M], ABC):
    """Client with mutual learning of its private model and a global copy, which it sends."""

    def train(self, request: M) -> ModelReply:
        """Train both networks, store the private one and return the copy."""
        p = self.participant
        local, copy = self.local(request.t).train(), p.model(p.global_spec, request.w).train()
        metrics = self.learn_mutually(request.t, local, copy)
        self.keep(request.t, local)
        return ModelReply(metrics=metrics, w=upload(copy))

    @abstractmethod
    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of private model and copy from their logits [n, C] before either step.

        Each loss detaches the other network's logits, or the sum of both is the loss of both.
        """

    def learn_mutually(self, t: int, local: Classifier, copy: Classifier) -> dict[str, float]:
        """Train both networks in round t; return scalars for the journal."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, shared = self.losses(local(x), copy(x), y)
            return own + shared

        # Teachers are detached, so the gradient of the sum is each network's own gradient.
        return self.participant.train(t, self.groups(local, copy), loss)

    def groups(self, local: Classifier, copy: Classifier) -> ParamsT:
        """Return the parameters that the optimiser trains; ``train.clip`` limits each group."""
        return [*local.parameters(), *copy.parameters()]


def frozen_logits(teacher: Classifier) -> Loss:
    """Return a function that computes the logits of ``teacher`` without gradients."""
    return torch.no_grad()(lambda x: teacher(x))
