"""FedMD, client half: speak about public images, then digest the server's answer and train."""

from typing import final

from client_app.copy import cross_entropy
from client_app.participant import upload
from client_app.private import Memory, Private
from client_app.public_set import Seeing
from common import protocol
from common.methods.fedmd import Answer, Down, Learnt, Speaking, Up
from common.models.classifier import Classifier
from common.predictions import spoken
from common.public_set import digest
from common.records import Records, StateDict


@final
class Started(Records):
    """θ_k as it was before the client's first round."""

    local: StateDict


@final
class FedMD(Seeing[Speaking, Down], Private[Speaking, Down]):
    """|f(θ_k; x) − ẑ(x)|, then CE(f(θ_k; x), y)."""

    receives, receives_second = Down, Answer

    def local(self, t: int) -> Classifier:
        return self.participant.model(self.spec, self._kept(t, t))

    def _kept(self, t: int, started: int) -> StateDict | None:
        """θ_k as a round before t left it; else as it was made ready before round ``started``."""
        memory = self.participant.recall(t, Memory) or self.participant.recall(started, Started)
        return memory.local if memory else None

    @property
    def _starts(self) -> bool:
        """Whether anything is trained before a client's first round."""
        return self.options.public_epochs > 0 or self.options.first_epochs > 0

    def train(self, down: Down) -> Up:
        """What θ_k says; in the client's first round after what comes before it."""
        t, o, weights = down.t, self.options, self._kept(down.t, down.t)
        net = self.participant.model(self.spec, weights)
        metrics = self._start(t, net) if weights is None and self._starts else {}
        said = o.speak(self.task.logits(net, self.images(t)))
        theta = spoken(said, self.config.wire.dtype, probabilities=o.probabilities)
        return Up(metrics=metrics, **theta)

    def _start(self, t: int, net: Classifier) -> dict[str, float]:
        """Training before the first round, which the second exchange of round t goes on from."""
        p, o, loss = self.participant, self.options, cross_entropy(net)
        metrics: dict[str, float] = {}
        if o.public_epochs:
            if (labels := p.public_labels) is None:
                raise ValueError("the classes of the public set are not the task's")
            given = p.train_on(t, net, p.public, labels, loss, times=o.public_epochs, name="public")
            metrics["public_loss"] = given["loss"]
        if o.first_epochs:
            given = p.train_on(t, net, *p.train_set, loss, times=o.first_epochs, name="first")
            metrics["first_loss"] = given["loss"]
        p.remember(t, Started(local=upload(net)))
        return metrics

    def second(self, down: protocol.Down) -> Learnt:
        """Digest and train, from the weights that spoke in the first exchange."""
        assert isinstance(down, Answer)
        p, o, t = self.participant, self.options, down.t
        weights = self._kept(t, t + 1)
        if weights is None and self._starts:
            raise ValueError(f"there is no model of round {t} to go on from")
        net = p.model(self.spec, weights)
        target = down.said(probabilities=o.probabilities)
        align = digest(self.task, t, net, self.images(t), target, o.distance, "digest", p.k)
        epochs = o.private_epochs(t, self.config.train.epochs)
        metrics = p.train(t, net.train().parameters(), cross_entropy(net), times=epochs)
        self.keep(t, net)
        metrics["align_loss"] = align
        if o.whole_test:
            metrics["test_accuracy"] = p.test_accuracy(net)
        return Learnt(metrics=metrics)
