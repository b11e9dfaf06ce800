"""Server halves with a public set, and DL-SH, DL-MH and I-DL-MH, which distil predictions on it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from common import journal
from common.data import divide
from common.data.dataset import fingerprint
from common.data.shares import check_public_tests
from common.exchange import quantise, tree
from common.exchange.protocol import Reply as AnyReply
from common.exchange.records import Records, StateDict
from common.journal import Entry, Incentive
from common.losses.distillation import opinion
from common.methods.dl_mh import SchemeReply
from common.methods.dl_sh import Distilling, Request
from common.techniques.ensemble import (
    by_cross_entropy,
    by_factorisation,
    check_schema,
    client_weights,
    literal_product,
    scatter,
    weighted_sum,
)
from common.techniques.incentive import IncentiveReply, IncentiveRequest
from common.techniques.public_set import digest, subset
from common.training.fit import Loss
from common.training.task import epochs
from server_app.aggregation.robust import centre, probabilities
from server_app.global_model import GlobalModel, Weights
from server_app.method import Client, Method, Metrics, O, Replies, U

D = TypeVar("D", bound=Distilling)
S = TypeVar("S", bound=SchemeReply)


class ServerPublicSet(Method[O, U], ABC):
    """Server half with a public set that clients need not have."""

    def prepare(self) -> None:
        super().prepare()
        divided = divide(self.config.data, self.config.partition_seed)
        assert divided.public is not None, "the configuration is checked for a public set"
        self.public, self.labels = divided.public, divided.labels

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        check_public_tests(self.config.data, self.roster_size, self.config.partition_seed)

    @property
    def samples(self) -> int:
        """N, the number of public samples."""
        return len(self.public)

    @property
    def of_a_round(self) -> int:
        """n, the number of samples in A_t."""
        return min(self.config.public.subset or self.samples, self.samples)

    def images(self, t: int) -> Tensor:
        """Return A_t [n, C, H, W], the public images of round t."""
        return self.public[subset(self.task, t, self.samples)]

    def logits_of(self, t: int, models: Iterable[tuple[str, StateDict]]) -> Iterator[Tensor]:
        """Yield the logits [n, C] on A_t of networks, each an architecture with weights.

        Only one network is in memory at a time.
        """
        images = self.images(t)
        return (self.task.logits(self.build(spec, w), images) for spec, w in models)

    @property
    def robust(self) -> bool:
        """Whether ``robust_mean`` replaces the mean of the clients' predictions."""
        return self.config.public.robust != "none"

    def robust_mean(self, predictions: Iterable[Tensor]) -> Tensor:
        """Return the coordinate-wise median or trimmed mean of predictions [n, C] (``[public]``).

        Rows of probabilities do not sum to 1 any more; see ``normalised``.
        """
        return centre(list(predictions), self.config.public.robust, self.config.public.trim)

    def opinion(
        self, logits: Iterable[Tensor], how: Literal["logits", "mean", "max", "vote"], T: float
    ) -> Tensor:
        """Return one distribution for each image [n, C] from the clients' logits z_i [n, C].

        ``how``: as in ``losses.distillation.opinion``. With ``public.robust`` it is "logits" or
        "mean", and a robust mean replaces the mean.
        """
        learnt = self.task.objective
        if learnt.one_each and not self.robust:
            return opinion(logits, how, T)
        mean = self.robust_mean if self.robust else _mean
        if how == "logits":
            return learnt.shares(mean(logits), T)
        return self.normalised(mean(learnt.shares(z, T) for z in logits))

    def normalised(self, shares: Tensor) -> Tensor:
        """Return the ``robust_mean`` of probabilities [n, C] as probabilities again."""
        return probabilities(shares) if self.task.objective.one_each else shares

    def train_student(
        self, t: int, spec: str, w: StateDict, targets: Tensor, loss: Loss
    ) -> tuple[StateDict, float]:
        """Train weights w of an architecture on ``targets`` [n, ...] for A_t.

        ``loss`` takes logits and targets of a batch. Return the new weights and the mean loss.
        """
        student = self.build(spec, w)
        images, name, steps = self.images(t), ("distil", spec), self.server_steps
        mean = digest(self.task, t, student, images, targets, loss, *name, steps=steps)
        return tree.snapshot(student), mean


def _mean(predictions: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(predictions)).mean(0)


class SharedPublicSet(ServerPublicSet[O, U], ABC):
    """Server half with a public set that every client has too."""

    def admit(self, client: Client) -> None:
        super().admit(client)
        if client.info.public != fingerprint(self.public):
            raise ValueError(f"client {client.k} has another public set than the server")


class PublicSet(SharedPublicSet[D, U], GlobalModel[D, U], ABC):
    """Server half whose w is M_tgt, trained on X_dist with targets from clients' predictions."""

    state_type: ClassVar[type[Records]] = Weights

    @property
    def classes(self) -> int:
        return self.task.num_classes

    def request(self, t: int) -> Request:
        return Request()

    @abstractmethod
    def targets_of(self, replies: Replies[U]) -> Tensor:
        """Return the targets of M_tgt for X_dist: Y_g [N, C], or labels [N]."""

    def step(self, t: int, replies: Replies[U]) -> Metrics:
        self.targets = self.targets_of(replies)
        return {"distill_loss": self.distil(t, self.targets)}

    def check_confidence(self, w: Tensor | None) -> None:
        """Raise ``ValueError`` unless w_i matches the configuration: None, or [N] in [0, 1]."""
        kind = self.config.confidence.kind
        if (w is None) != (kind == "uniform"):
            state = "missing" if w is None else "present"
            raise ValueError(f'w is {state}, but confidence.kind = "{kind}"')
        if w is not None:
            quantise.check_dtype(w, (self.samples,), self.config.wire.dtype, "w")
            quantise.check_unit(w, "w")

    def ensemble(self, predictions: Sequence[Tensor], w: Sequence[Tensor | None]) -> Tensor:
        """Return Y_g [N, C] from each client's M_i(x) [N, C] and w_i [N]; None: equal weights.

        ``ensemble.aggregation = "median"`` ignores the w_i.
        """
        o, rule = self.config.confidence, self.config.ensemble.aggregation
        if rule == "median":
            return centre(predictions, "median", 0.0)
        confidences = [
            torch.zeros(self.samples) if w_i is None else quantise.decode(w_i).clamp(0, 1)
            for w_i in w
        ]
        W = client_weights(torch.stack(confidences), o.temperature, o.space)
        return (literal_product if rule == "literal_product" else weighted_sum)(predictions, W)

    def distil(self, t: int, targets: Tensor) -> float:
        """Train M_tgt on X_dist for E_g epochs of CE with targets [N, C] or labels [N].

        Return the mean loss.
        """
        student = self.build(self.global_spec, self.w).train()
        batches = self.task.batches(self.public, targets, "distil", t)
        metrics = self.task.fit(
            t,
            student.parameters(),
            epochs(batches, self.config.ensemble.epochs),
            lambda x, y: F.cross_entropy(student(x), y),
        )
        self.w = tree.snapshot(student)
        return metrics["loss"]

    def theta_of(self, source: str) -> Tensor:
        """Return θ, which rewards clients: the targets of round t, or M_tgt's predictions."""
        return self.targets if source == "ensemble" else self.predicted(self.public)

    def reward(self, theta: Tensor) -> IncentiveRequest:
        """Return the request with the probabilities θ [N, C] in the wire's dtype."""
        return IncentiveRequest(
            y=None, theta=quantise.encode(theta.clamp(0, 1), self.config.wire.dtype)
        )

    def aggregate_second(self, replies: Sequence[tuple[Client, AnyReply]], entry: Entry) -> None:
        """Write clients' accuracies before and after, and their means, to ``entry.incentive``."""
        rewarded = {c.k: reply for c, reply in replies if isinstance(reply, IncentiveReply)}
        if rewarded:
            entry.incentive = Incentive(
                before=sum(reply.before for reply in rewarded.values()) / len(rewarded),
                after=sum(reply.after for reply in rewarded.values()) / len(rewarded),
                clients={
                    k: journal.Gain(before=reply.before, after=reply.after)
                    for k, reply in rewarded.items()
                },
            )


class OwnClasses(PublicSet[D, S], ABC):
    """Server half with Y_g = Σ_i W_i M_i'; M_i' is M_i at the client's classes and 0 elsewhere."""

    def check(self, client: Client, reply: S) -> None:
        check_schema(reply.d, self.classes)
        dtype = self.config.wire.dtype
        quantise.check_dtype(reply.theta, (self.samples, len(reply.d)), dtype, "theta")
        quantise.check_rows(reply.theta, dtype, "theta")
        self.check_confidence(reply.w)

    def targets_of(self, replies: Replies[S]) -> Tensor:
        o = self.config.ensemble
        predictions = [
            scatter(quantise.decode_probabilities(reply.theta), reply.d, self.classes)
            for _, reply in replies
        ]
        if not o.aggregation.startswith("uhc"):
            return self.ensemble(predictions, [reply.w for _, reply in replies])
        classes_of = torch.zeros(len(replies), self.classes, dtype=torch.bool)
        for row, (_, reply) in zip(classes_of, replies, strict=True):
            row[torch.tensor(reply.d)] = True
        p = torch.stack(predictions)
        if o.aggregation == "uhc-ce":
            return by_cross_entropy(p, classes_of, o.uhc_steps, o.uhc_lr)
        return by_factorisation(p, classes_of, o.uhc_steps)

    def numbers(self, replies: Replies[S]) -> int:
        """Return equation 10: clients' logits of their classes, confidences and schemas."""
        N = self.samples
        return sum(
            N * (len(reply.d) + (reply.w is not None)) + len(reply.d) for _, reply in replies
        )
