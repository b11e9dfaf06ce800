"""FedORION, server half: average the copies, then distil the clients' models on noise.

Contract: common/methods/fedorion.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from common import tree
from common.losses.distillation import KD_LOSSES
from common.methods.fedorion import Config, Down, Up
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.distil.noise import distil, weighted
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict
    given: dict[int, StateDict]  #: what each client was last given, under stale-broadcast


@final
class FedORION(GlobalModel[Up]):
    """θ_g ← 1/C Σ θ_gi, then θ_g ← θ_g − η_g ∇ Σ_i n_i/Σn KD(f(z; θ_i) → f(z; θ_g))."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.options: Config = self.config.method
        self.w0 = self.w
        self.given: dict[int, StateDict] = {}

    def down(self, t: int) -> Down | Callable[[Client], Down]:
        if not self.options.stale_broadcast:
            return Down(experiment=self.experiment, t=t, w=self.w)
        return lambda client: Down(
            experiment=self.experiment, t=t, w=self.given.get(client.k, self.w0)
        )

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")
        if up.local is not None:
            tree.check_like(up.local, self.expected(client.model), f"local ({client.model})")
        elif client.model != self.global_spec:
            raise ValueError(f"local is missing: a {client.model} cannot skip mutual learning")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        metrics = mean_metrics(ups)
        if self.options.aggregate:
            sizes = [client.n for client, _ in ups]
            self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        if self.options.distill:
            metrics["distill_loss"] = self._distil(t, ups)
        if self.options.stale_broadcast:
            self.given |= {client.k: self.w for client, _ in ups}
        return metrics

    def _distil(self, t: int, ups: list[tuple[Client, Up]]) -> float:
        """Equation 3."""
        o = self.options
        teachers = [(client.model, up.w if up.local is None else up.local) for client, up in ups]
        transfer = weighted(KD_LOSSES[o.kd_loss], self._shares(ups), o.kd_temperature)
        self.w, loss = distil(self, t, self.w, teachers, transfer)
        return loss

    def _shares(self, ups: list[tuple[Client, Up]]) -> list[float]:
        """The teachers' weights in equation 3."""
        sizes = [client.n for client, _ in ups]
        if self.options.kd_weights == "uniform":
            return [1 / len(sizes)] * len(sizes)
        everybody = sum(client.n for client in self.clients)
        total = sum(sizes) if self.options.kd_weights == "participants" else everybody
        return [n / total for n in sizes]

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn

    def state(self) -> State:
        return State(w=self.w, given=self.given)

    def restore(self, state: State) -> None:
        self.w, self.given = state.w, state.given
