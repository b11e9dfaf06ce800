"""DAFL, server half: distil the clients' model into a student without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from common import optimise, tree
from common.datafree import DataFree, new_generator
from common.fit import fit
from common.methods.dafl import Options, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.global_model import Averaged
from server_app.method import Metrics, Models, Ups


@final
class State(Records):
    w: StateDict
    v: StateDict
    generator: StateDict
    adam: dict[int, StateDict]
    sgd: dict[int, StateDict]


@final
class DAFL(Averaged[Options, Up]):
    """w ← Σ_k p_k w_k;  v learns what w says to g(θ; z)."""

    answers, keeps, name = Up, State, "student"

    def prepare(self) -> None:
        super().prepare()
        o = self.options
        self.student = self.build(self.global_spec, None, "student")
        self.generator = new_generator(self.task).to(self.task.device)
        self.sgd = optimise.make(
            self.student.parameters(), "sgd", o.student_lr, momentum=o.student_momentum
        )
        self.adam: dict[int, StateDict] = {}

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        o, task = self.options, self.task
        if t < o.start:
            return {}
        optimizer = task.generator_optimizer(t, self.generator.parameters())
        optimise.restore_moments(optimizer, self.adam)
        datafree = DataFree(
            task,
            self.generator,
            self.build(self.global_spec, self.w),
            self.student,
            optimizer,
            *("latents", t),
            gamma=1.0,
            size=o.server_batch_size,
            protect=False,
        )
        batches = datafree.batches([()] * o.server_steps)
        distilled = fit(self.sgd, batches, datafree.distance, precision=self.config.run.precision)
        self.adam = optimise.moments(optimizer)
        return {"distill_loss": distilled["loss"], "generator_loss": datafree.mean_loss}

    def model(self) -> Classifier:
        return self.student

    def ask(self) -> StateDict:
        return tree.snapshot(self.student)

    def further(self) -> dict[str, Models]:
        return {"teacher": self.models}

    def state(self) -> State:
        return State(
            w=self.w,
            v=tree.snapshot(self.student),
            generator=tree.snapshot(self.generator),
            adam=self.adam,
            sgd=optimise.moments(self.sgd),
        )

    def restore(self, state: Mapping[str, object]) -> None:
        kept = State.model_validate(state)
        self.w, self.adam = kept.w, kept.adam
        self.student.load_state_dict(kept.v)
        self.generator.load_state_dict(kept.generator)
        optimise.restore_moments(self.sgd, kept.sgd)
