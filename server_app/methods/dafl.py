"""DAFL, server half: distil the clients' model into a student without data.

Contract: common/methods/dafl.py.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from common import optimise, seeds, tree
from common.datafree import DataFree, is_adversarial, new_generator
from common.fit import fit
from common.methods.dafl import Config, Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.method import Method, Metrics, mean_metrics
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict
    v: StateDict
    generator: StateDict
    adam: dict[int, StateDict]
    sgd: dict[int, StateDict]


@final
class DAFL(Method[Up]):
    """w ← Σ_k p_k w_k;  v learns what w says to g(θ; z)."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        o: Config = self.config.method
        self.options = o
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)
        self.student = self.build(self.global_spec, None, "student")
        self.generator = new_generator(o, self.dataset, self.config.run.seed).to(self.device)
        self.optimizer = optimise.make(
            self.student.parameters(), "sgd", o.student_lr, momentum=o.student_momentum
        )
        self.adam: dict[int, StateDict] = {}

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        sizes = [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        distilled = self._distil(t) if t >= self.options.start else {}
        return {**mean_metrics(ups), **distilled}

    def _distil(self, t: int) -> Metrics:
        o, run = self.options, self.config.run
        datafree = DataFree(
            self.generator,
            self.build(self.global_spec, self.w),
            self.student,
            o,
            gamma=1.0,
            size=o.server_batch_size,
            adversarial=is_adversarial(o, self.config.data.name),
            draw=seeds.stream(run.seed, "latents", t, device=self.device),
            protect=False,
        )
        optimise.restore_moments(datafree.optimizer, self.adam)

        def loss(images: Tensor, logits: Tensor) -> Tensor:
            return datafree.distance(images, logits)

        nothing: list[tuple[Tensor, ...]] = [()] * o.server_steps
        batches = datafree.batches(nothing)
        distilled = fit(self.optimizer, batches, loss, precision=run.precision)
        self.adam = optimise.moments(datafree.optimizer)
        return {"distill_loss": distilled["loss"], "generator_loss": datafree.mean_loss}

    def model(self) -> Classifier:
        return self.student

    @property
    def model_name(self) -> str:
        return "student"

    def further_models(self) -> dict[str, StateDict]:
        return {"teacher": self.w}

    def state(self) -> State:
        return State(
            w=self.w,
            v=tree.snapshot(self.student),
            generator=tree.snapshot(self.generator),
            adam=self.adam,
            sgd=optimise.moments(self.optimizer),
        )

    def restore(self, state: State) -> None:
        self.w, self.adam = state.w, state.adam
        self.student.load_state_dict(state.v)
        self.generator.load_state_dict(state.generator)
        optimise.restore_moments(self.optimizer, state.sgd)
