"""FedORION, server half: average the copies, then distil the clients' models on noise."""

from collections.abc import Callable
from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.losses.distillation import KD_LOSSES
from common.methods.fedorion import Options, Reply, Request
from server_app.distillation.noise import distil, weighted
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="fedorion.State"):
    given: dict[int, StateDict]  #: weights last sent to each client, under stale-broadcast


@final
class FedORION(Averaged[Options, Reply]):
    """Server with θ_g ← 1/C Σ θ_gi, then θ_g ← θ_g − η_g ∇ Σ_i n_i/Σn KD(f(z; θ_i) → f(z; θ_g))."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.first = self.w
        self.given: dict[int, StateDict] = {}

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.given = {k: w for k, w in self.given.items() if k != client.k}

    def request(self, t: int) -> Request | Callable[[Client], Request]:
        if not self.options.stale_broadcast:
            return Request(w=self.w)
        return lambda client: Request(w=self.given.get(client.k, self.first))

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        if reply.local is not None:
            expected = self.task.expected(client.architecture)
            tree.check_like(reply.local, expected, f"local ({client.architecture})")
        elif client.architecture != self.global_spec:
            raise ValueError(f"local is missing: {client.architecture} cannot skip mutual learning")

    def cached(self, reply: Reply) -> Reply:
        return super().cached(reply).model_copy(update={"local": None})

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        return super().combine(replies, previous) if self.options.aggregate else previous

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        o, metrics = self.options, {}
        if o.distill:
            teachers = [(client.architecture, reply.local or reply.w) for client, reply in replies]
            temperature = self.config.noise.temperature
            transfer = weighted(KD_LOSSES[o.kd_loss], self._shares(replies), temperature)
            metrics["distill_loss"] = distil(self, t, teachers, transfer)
        if o.stale_broadcast:
            self.given |= {client.k: self.w for client in replies.clients}
        return metrics

    def _shares(self, replies: Replies[Reply]) -> list[float]:
        """Return the teachers' weights in equation 3."""
        if self.options.kd_weights == "uniform":
            return [1 / len(replies)] * len(replies)
        participants = self.options.kd_weights == "participants"
        total = sum(client.n for client in (replies.clients if participants else self.clients))
        return [n / total for n in replies.sizes]
