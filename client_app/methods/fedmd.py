"""FedMD, client half: send predictions for public images, then learn their mean and train."""

from typing import final

from client_app.bases.global_copy import cross_entropy
from client_app.bases.own_model import ClientState, OwnModel
from client_app.bases.public_set import SharedPublicSet
from client_app.participant import upload
from common.exchange import protocol
from common.exchange.predictions import spoken
from common.exchange.records import Records, StateDict
from common.methods.fedmd import (
    ConsensusReply,
    ConsensusRequest,
    PredictionExchange,
    Reply,
    Request,
)
from common.models.classifier import Classifier
from common.techniques.public_set import digest


@final
class Started(Records, kind="fedmd.Started"):
    """State of a client after the training before its first round."""

    local: StateDict  #: θ_k


@final
class FedMD(SharedPublicSet[PredictionExchange, Request], OwnModel[PredictionExchange, Request]):
    """Client that minimises |f(θ_k; x) − ẑ(x)| on A_t, then CE(f(θ_k; x), y) on its samples."""

    request_type, second_request_type = Request, ConsensusRequest

    def local(self, t: int) -> Classifier:
        return self.participant.model(self.spec, self._kept(t, t))

    def _kept(self, t: int, started: int) -> StateDict | None:
        """Return θ_k after the newest round < t, else ``Started`` of a round < ``started``."""
        p = self.participant
        state = p.load_state(t, ClientState) or p.load_state(started, Started)
        return state.local if state else None

    @property
    def _starts(self) -> bool:
        """Whether there is training before a client's first round."""
        return self.options.public_epochs > 0 or self.options.first_epochs > 0

    def train(self, request: Request) -> Reply:
        """Return θ_k's predictions for A_t; in the client's first round, train θ_k before."""
        t, o, weights = request.t, self.options, self._kept(request.t, request.t)
        net = self.participant.model(self.spec, weights)
        metrics = self._start(t, net) if weights is None and self._starts else {}
        predictions = o.speak(self.task.logits(net, self.images(t)))
        theta = spoken(predictions, self.config.wire.dtype, probabilities=o.probabilities)
        return Reply(metrics=metrics, **theta)

    def _start(self, t: int, net: Classifier) -> dict[str, float]:
        """Train ``net`` before the first round and store it for the second exchange of round t."""
        p, o, loss = self.participant, self.options, cross_entropy(net)
        metrics: dict[str, float] = {}
        if o.public_epochs:
            if (labels := p.public_labels) is None:
                raise ValueError("the classes of the public set are not the task's")
            fit = p.train_on(t, net, p.public, labels, loss, times=o.public_epochs, name="public")
            metrics["public_loss"] = fit["loss"]
        if o.first_epochs:
            fit = p.train_on(t, net, *p.train_set, loss, times=o.first_epochs, name="first")
            metrics["first_loss"] = fit["loss"]
        p.save_state(t, Started(local=upload(net)))
        return metrics

    def second(self, request: protocol.Request) -> ConsensusReply:
        """Learn the consensus and train, from the weights of the first exchange."""
        assert isinstance(request, ConsensusRequest)
        p, o, t = self.participant, self.options, request.t
        weights = self._kept(t, t + 1)
        if weights is None and self._starts:
            raise ValueError(f"there is no model of round {t} to continue from")
        net = p.model(self.spec, weights)
        target = request.said(probabilities=o.probabilities)
        align = digest(self.task, t, net, self.images(t), target, o.distance, "digest", p.k)
        epochs = o.private_epochs(t, self.config.train.epochs)
        metrics = p.train(t, net.train().parameters(), cross_entropy(net), times=epochs)
        self.keep(t, net)
        metrics["align_loss"] = align
        if o.whole_test:
            metrics["test_accuracy"] = p.test_accuracy(net)
        return ConsensusReply(metrics=metrics)
