"""FedMD, client half: send predictions for public images, then learn their mean and train."""

from functools import partial
from typing import final

from client_app.bases.own_model import ClientState, OwnModel
from client_app.bases.public_set import SharedPublicSet
from client_app.participant import upload
from common.exchange import protocol
from common.exchange.predictions import encoded
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
from common.training.optimise import Moments


@final
class Started(Records, kind="fedmd.Started"):
    """State of a client after the training before its first round."""

    local: StateDict  #: θ_k
    train: dict[int, StateDict] = {}  #: state of [train]'s optimiser if it is kept


@final
class Kept(Records, kind="fedmd.Memory"):
    """State of a client after a round with ``optimizers = "kept"``, instead of ``ClientState``."""

    local: StateDict  #: θ_k
    train: dict[int, StateDict]  #: state of the optimiser for the client's samples
    digest: dict[int, StateDict]  #: state of the optimiser for A_t


@final
class FedMD(SharedPublicSet[PredictionExchange, Request], OwnModel[PredictionExchange, Request]):
    """Client that minimises |f(θ_k; x) − ẑ(x)| on A_t, then CE(f(θ_k; x), y) on its samples."""

    request_type, second_request_type = Request, ConsensusRequest

    def local(self, t: int) -> Classifier:
        state = self._kept(t, t)
        return self.participant.model(self.spec, state.local if state else None)

    def _kept(self, t: int, started: int) -> ClientState | Kept | Started | None:
        """Return the state after the newest round < t, else ``Started`` of a round < ``started``.

        Weights and optimisers are one file, so that they are of the same round.
        """
        p = self.participant
        after: ClientState | Kept | None = (
            p.load_state(t, Kept) if self.options.keeps_optimizers else p.load_state(t, ClientState)
        )
        return after or p.load_state(started, Started)

    @property
    def _starts(self) -> bool:
        """Whether there is training before a client's first round."""
        return self.options.public_epochs > 0 or self.options.first_epochs > 0

    def train(self, request: Request) -> Reply:
        """Return θ_k's predictions for A_t; in the client's first round, train θ_k before."""
        t, o, state = request.t, self.options, self._kept(request.t, request.t)
        learnt = self.task.objective
        net = self.participant.model(self.spec, state.local if state else None)
        metrics = self._start(t, net) if state is None and self._starts else {}
        predictions = o.speak(self.task.logits(net, self.images(t)), learnt)
        theta = encoded(predictions, self.config.wire.dtype, probabilities=o.probabilities)
        return Reply(metrics=metrics, **theta)

    def _start(self, t: int, net: Classifier) -> dict[str, float]:
        """Train ``net`` before the first round and store it for the second exchange of round t."""
        p, o, loss = self.participant, self.options, self.participant.supervised(net)
        metrics: dict[str, float] = {}
        moments = Moments() if o.keeps_optimizers else None
        if o.public_epochs:
            if (labels := p.public_labels) is None:
                raise ValueError("the classes of the public set are not the task's")
            fit = p.train_on(t, net, p.public, labels, loss, times=o.public_epochs, name="public")
            metrics["public_loss"] = fit["loss"]
        if o.first_epochs:
            x, y = p.train_set
            fit = p.train_on(
                t, net, x, y, loss, times=o.first_epochs, name="first", moments=moments
            )
            metrics["first_loss"] = fit["loss"]
        p.save_state(t, Started(local=upload(net), train=moments.state if moments else {}))
        return metrics

    def second(self, request: protocol.Request) -> ConsensusReply:
        """Learn the consensus and train, from the weights of the first exchange."""
        assert isinstance(request, ConsensusRequest)
        p, o, t, learnt = self.participant, self.options, request.t, self.task.objective
        state = self._kept(t, t + 1)
        if state is None and self._starts:
            raise ValueError(f"there is no model of round {t} to continue from")
        net = p.model(self.spec, state.local if state else None)
        own = public = None
        if o.keeps_optimizers:
            own = Moments(state.train if isinstance(state, Started | Kept) else {})
            public = Moments(state.digest if isinstance(state, Kept) else {})
        target = request.said(probabilities=o.probabilities, one_each=learnt.one_each)
        name, images = ("digest", p.k), self.images(t)
        distance = partial(o.distance, learnt=learnt)
        align = digest(self.task, t, net, images, target, distance, *name, moments=public)
        epochs = o.private_epochs(t, self.config.train.epochs)
        loss = p.supervised(net)
        metrics = p.train(t, net.train().parameters(), loss, times=epochs, moments=own)
        if own is None or public is None:
            self.keep(t, net)
        else:
            p.save_state(t, Kept(local=upload(net), train=own.state, digest=public.state))
        metrics["align_loss"] = align
        if o.whole_test:
            metrics |= p.whole_test(net)
        return ConsensusReply(metrics=metrics)
