"""Base class of clients that keep one part of a network and train another from the server's."""

from typing import TypeVar, final

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.protocol import ModelReply, ModelRequest, ScoreReply, ScoreRequest
from common.exchange.records import Records, StateDict
from common.exchange.tree import cut
from common.methods.fedper import PartlyShared as Options
from common.models.classifier import Classifier

O = TypeVar("O", bound=Options)  # noqa: E741 - a method's options


@final
class ClientState(Records, kind="partly_shared.State"):
    """State of client k after a round."""

    w: StateDict  #: the private part of its network


class PartlyShared(GlobalCopy[O, ModelRequest]):
    """Client with the network of the received part φ and its own part, of which it sends φ_k."""

    def train(self, request: ModelRequest) -> ModelReply:
        net = self.completed(request.t, request.w).train()
        metrics = self.learn(request, net)
        weights = upload(net)
        private = [name for name in weights if name not in request.w]
        self.participant.save_state(request.t, ClientState(w=cut(weights, private)))
        return ModelReply(metrics=metrics, w=cut(weights, request.w))

    def completed(self, t: int, part: StateDict) -> Classifier:
        """Return the network of the shared ``part`` and the own part at the start of round t.

        Raises ``ValueError`` if ``part`` has other entries than those that travel.
        """
        p, shared = self.participant, self.options.shared(self.task.without_values(self.spec))
        if part.keys() != set(shared):
            raise ValueError("w has other entries than the shared part of the network")
        if (state := p.load_state(t, ClientState)) is not None:
            return p.model(self.spec, {**state.w, **part})
        net = p.model(self.spec)
        net.load_state_dict({**net.state_dict(), **part})
        return net

    def final_model(self, request: ScoreRequest) -> Classifier:
        """Return the own model: the newest φ, which the request has, with the newest own part."""
        if request.w is None:
            raise ValueError("a client's network has a part that the server sends: give its file")
        self.newest = request.w
        return self.own_model(request.t)

    def score(self, request: ScoreRequest) -> ScoreReply:
        """Return the accuracy of the own model: the newest φ with the newest own part."""
        assert request.w is not None, "the shared part"
        self.newest = request.w
        return super().score(request.model_copy(update={"w": None}))

    def own_model(self, t: int) -> Classifier:
        return self.completed(t + 1, self.newest)
