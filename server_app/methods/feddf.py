"""FedDF, server half: average each architecture, then distil all clients' models into it."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import final

from torch import nn

from common import progress
from common.methods.feddf import Options, Reply
from common.models.classifier import Classifier
from common.models.ensemble import Ensemble
from server_app.distillation.public_set import ServerPublicSet
from server_app.global_model import Averaged
from server_app.method import Metrics, Models, Replies


@final
class FedDF(ServerPublicSet[Options, Reply], Averaged[Options, Reply]):
    """Server with w_a ← w_a − η_s ∇ KL(σ(mean_k f(x; w_k) / T) ‖ σ(f(x; w_a) / T)).

    w_a starts from the mean of the clients with architecture a.
    """

    def refine(self, t: int, replies: Replies[Reply], models: Models) -> tuple[Models, Metrics]:
        if not self.config.public.learn:
            return models, {}
        o, T, learnt = self.options, self.options.temperature, self.task.objective
        teachers = self.logits_of(t, ((self.trains(client), reply.w) for client, reply in replies))
        targets = self.opinion(teachers, "logits" if o.average == "logits" else "mean", T)
        specs = sorted({self.trains(client) for client in replies.clients})
        loss = partial(learnt.from_shares, T=T)
        students = {
            spec: self.train_student(t, spec, models[spec], targets, loss)
            for spec in progress.steps(specs, "architecture")
        }
        losses = [loss for _, loss in students.values()]
        refined = {spec: w for spec, (w, _) in students.items()}
        return {**models, **refined}, {"distill_loss": fmean(losses)}

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        alone = len(nets) == 1
        return {} if alone else {"ensemble": Ensemble(nets, kind=self.options.ensemble)}
