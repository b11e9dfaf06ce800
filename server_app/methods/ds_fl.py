"""DS-FL, server half: average and sharpen the clients' predictions, and distil them into w."""

from functools import partial
from typing import final

import torch
from torch import Tensor

from common.exchange import quantise, tree
from common.exchange.records import Records, StateDict
from common.methods.ds_fl import Agreeing, Reply, Request
from common.techniques.public_set import digest, subset
from server_app.distillation.public_set import SharedPublicSet
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class State(Records, kind="ds_fl.State"):
    w: StateDict
    y: Tensor | None  #: the newest Ŷ [n, C], encoded for the wire
    since: int  #: round of Ŷ
    y_rows: Tensor | None  #: sample indices of Ŷ; None if that round's A_t was drawn at random


@final
class DSFL(SharedPublicSet[Agreeing, Reply], GlobalModel[Agreeing, Reply]):
    """Server with Ŷ = σ(p̄ / T), or p̄, and w ← w − η ∇ KL(Ŷ ‖ σ(f(w; x)))."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.since = 0
        self.y: Tensor | None = None
        self.y_rows: Tensor | None = None

    def request(self, t: int) -> Request:
        self.rows = self._chosen(t)
        return Request(rows=self.rows, y=self.y, since=self.since, y_rows=self.y_rows)

    def _chosen(self, t: int) -> Tensor | None:
        """Return the indices of A_t, int32 ascending; None if all draw A_t from the seed."""
        n, choose = self.config.public.subset, self.options.choose
        if choose == "random" or t == 1 or not 0 < n < self.samples:
            return None
        chosen = self._uncertainty(self.predicted(self.public), choose).topk(n).indices
        return chosen.sort().values.int()

    def _uncertainty(self, p: Tensor, by: str) -> Tensor:
        """Return ``uncertainty`` of p [N, C]; of labels the mean over them, each yes or no."""
        if self.task.objective.one_each:
            return uncertainty(p, by)
        return uncertainty(torch.stack([p, 1 - p], 2).flatten(0, 1), by).view(p.shape).mean(1)

    def check(self, client: Client, reply: Reply) -> None:
        dtype, shape = self.config.wire.dtype, (self.of_a_round, self.task.num_classes)
        quantise.check_dtype(reply.theta, shape, dtype, "theta")
        one_each = self.task.objective.one_each
        quantise.check_rows(reply.theta, dtype, "theta", one_each=one_each)

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        learnt = self.task.objective
        decode = partial(quantise.decode_probabilities, one_each=learnt.one_each)
        theta = (decode(reply.theta) for _, reply in replies)
        if self.robust:
            y = self.normalised(self.robust_mean(theta))
        else:
            y = sum(theta, torch.zeros(())) / len(replies)
        if self.options.aggregation == "era":
            y = learnt.sharpened(y, self.options.temperature)
        rows = subset(self.task, t, self.samples) if self.rows is None else self.rows.long()
        self.y, self.since = quantise.encode(y, self.config.wire.dtype), t
        self.y_rows = self.rows
        student = self.build(self.global_spec, self.w)
        targets, images = decode(self.y), self.public[rows]
        loss = digest(self.task, t, student, images, targets, learnt.from_shares, "digest")
        self.w = tree.snapshot(student)
        return {"distill_loss": loss, "entropy": float(self._uncertainty(y, "entropy").mean())}

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return n C up and, from the second round on, n C down for each client."""
        return 2 * self.of_a_round * self.task.num_classes * len(replies)


def uncertainty(p: Tensor, by: str) -> Tensor:
    """Return the uncertainty [N] of distributions p [N, C].

    ``by``: "entropy" in nats, or "margin", the negative difference of the two largest values.
    """
    if by == "entropy":
        entropy: Tensor = torch.special.entr(p).sum(1)
        return entropy
    first, second = p.topk(2, dim=1).values.unbind(1)
    return second - first
