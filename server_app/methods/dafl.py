"""DAFL, server half: distil the global model into a student on generated images."""

from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.dafl import Options, Reply
from common.techniques.datafree import DataFree, new_generator
from common.training import optimise
from common.training.fit import fit
from server_app.global_model import Averaged, Weights
from server_app.method import Metrics, Replies


@final
class State(Weights, kind="dafl.State"):
    v: StateDict
    generator: StateDict
    adam: dict[int, StateDict]
    sgd: dict[int, StateDict]


@final
class DAFL(Averaged[Options, Reply]):
    """Server with w ← Σ_k p_k w_k; the student v distils w on images g(θ; z)."""

    state_type, name = State, "student"

    def prepare(self) -> None:
        super().prepare()
        self.v = tree.snapshot(self.build(self.global_spec, None, "student"))
        self.generator = tree.snapshot(new_generator(self.task))
        self.adam: dict[int, StateDict] = {}
        self.sgd: dict[int, StateDict] = {}

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        o, task = self.options, self.task
        if t < o.start:
            return {}
        student, generator = self.build(self.global_spec, self.v), new_generator(task)
        generator.load_state_dict(self.generator)
        adam = task.generator_optimizer(t, generator.to(task.device).parameters())
        adam = optimise.restore_moments(adam, self.adam)
        momentum = o.student_momentum
        sgd = optimise.make(student.parameters(), "sgd", o.student_lr, momentum=momentum)
        sgd = optimise.restore_moments(sgd, self.sgd)
        datafree = DataFree(
            task,
            generator,
            self.build(self.global_spec, self.w),
            student,
            adam,
            *("latents", t),
            gamma=1.0,
            size=o.server_batch_size,
            protect=False,
        )
        batches = datafree.batches([()] * self.server_steps(o.server_steps))
        distilled = fit(sgd, batches, datafree.distance, precision=self.config.run.precision)
        self.v, self.generator = tree.snapshot(student), tree.snapshot(generator)
        self.adam, self.sgd = optimise.moments(adam), optimise.moments(sgd)
        return {"distill_loss": distilled["loss"], "generator_loss": datafree.mean_loss}

    def student(self) -> StateDict:
        return self.v
