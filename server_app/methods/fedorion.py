"""FedORION, server half: average the copies, then distil the clients' models on noise."""

from collections.abc import Callable
from typing import final

from common import tree
from common.losses.distillation import KD_LOSSES
from common.methods.fedorion import Down, Options, Up
from common.records import Records, StateDict
from server_app.distil.noise import distil, weighted
from server_app.global_model import Averaged
from server_app.method import Client, Metrics, Ups


@final
class State(Records):
    w: StateDict
    given: dict[int, StateDict]  #: what each client was last given, under stale-broadcast


@final
class FedORION(Averaged[Options, Up]):
    """θ_g ← 1/C Σ θ_gi, then θ_g ← θ_g − η_g ∇ Σ_i n_i/Σn KD(f(z; θ_i) → f(z; θ_g))."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.first = self.w
        self.given: dict[int, StateDict] = {}

    def down(self, t: int) -> Down | Callable[[Client], Down]:
        if not self.options.stale_broadcast:
            return Down(w=self.w)
        return lambda client: Down(w=self.given.get(client.k, self.first))

    def check(self, client: Client, up: Up) -> None:
        super().check(client, up)
        if up.local is not None:
            own = self.task.expected(client.model)
            tree.check_like(up.local, own, f"local ({client.model})")
        elif client.model != self.global_spec:
            raise ValueError(f"local is missing: a {client.model} cannot skip mutual learning")

    def cached(self, up: Up) -> Up:
        return super().cached(up).model_copy(update={"local": None})

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        return super().combine(ups, previous) if self.options.aggregate else previous

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        o, metrics = self.options, {}
        if o.distill:
            teachers = [(client.model, up.local or up.w) for client, up in ups]
            temperature = self.config.noise.temperature
            transfer = weighted(KD_LOSSES[o.kd_loss], self._shares(ups), temperature)
            metrics["distill_loss"] = distil(self, t, teachers, transfer)
        if o.stale_broadcast:
            self.given |= {client.k: self.w for client in ups.clients}
        return metrics

    def _shares(self, ups: Ups[Up]) -> list[float]:
        """The teachers' weights in equation 3."""
        if self.options.kd_weights == "uniform":
            return [1 / len(ups)] * len(ups)
        everybody = sum(client.n for client in self.clients)
        total = sum(ups.sizes) if self.options.kd_weights == "participants" else everybody
        return [n / total for n in ups.sizes]
