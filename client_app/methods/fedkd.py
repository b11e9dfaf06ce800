"""FedKD, client half: mentor and mentee teach each other; the mentee's update is compressed."""

from typing import Any, final

import torch.nn.functional as F
from torch import Tensor, nn

from client_app.bases.own_model import OwnModel
from client_app.participant import upload
from common import seeds
from common.exchange.records import Records, StateDict
from common.methods.fedkd import Options, Reply, Request
from common.models.classifier import Classifier
from common.techniques import low_rank
from common.training.fit import Loss


@final
class MenteeState(Records, kind="fedkd.Memory"):
    """State of client k beside its own model."""

    w: StateDict  #: the mentee w that the client received
    projection: Tensor  #: W_k [d_k, d]


@final
class FedKD(OwnModel[Options, Request]):
    """Client with the losses CE + λ (KL + MSE) / q of mentor and mentee."""

    def train(self, request: Request) -> Reply:
        p, t = self.participant, request.t
        w, local = self._mentee(request), self.local(t).train()
        mentee = p.model(p.global_spec, w).train()
        projection = self._projection(t, local, mentee)
        lr = self.task.lr(t) * (self.options.mentee_lr / self.config.train.lr or 1.0)
        groups: list[dict[str, Any]] = [
            {"params": list(local.parameters())},
            {"params": list(projection.parameters())},
            {"params": list(mentee.parameters()), "lr": lr},
        ]
        metrics = p.train(t, groups, self.loss(local, mentee, projection))
        self.keep(t, local)
        state = MenteeState(w=w, projection=upload(projection)["weight"])
        p.save_state(t, state, also=request.since)
        change = {name: trained - w[name] for name, trained in upload(mentee).items()}
        energy = self.options.energy(t, self.config.run.rounds)
        return Reply(metrics=metrics, update=low_rank.compress(change, energy))

    def loss(self, local: Classifier, mentee: Classifier, projection: nn.Linear) -> Loss:
        """Return L_k + L as a function of a batch."""
        o, goal, weights = self.options, self.task.objective, self.participant.class_weights

        def loss(x: Tensor, y: Tensor) -> Tensor:
            f_k, f = (goal.kept(net.features(x), y) for net in (local, mentee))
            log_k, log = goal.form(local.head(f_k)), goal.form(mentee.head(f))
            mapped = projection(f)
            labels = goal.loss_of(log_k, y, weights) + goal.loss_of(log, y, weights)
            q = fixed(labels)
            of_mentor = goal.divergence(fixed(log), log_k, o.kl) + F.mse_loss(f_k, fixed(mapped))
            of_mentee = goal.divergence(fixed(log_k), log, o.kl) + F.mse_loss(mapped, fixed(f_k))
            return labels + o.weight * (of_mentor + of_mentee) / q

        def fixed(x: Tensor) -> Tensor:
            return x.detach() if o.detach else x

        return loss

    def _mentee(self, request: Request) -> StateDict:
        """Return w of the request's round."""
        if request.w is not None:
            return request.w
        assert request.update is not None, "a request has w or an update"
        state = self.participant.load_state_of(request.since, MenteeState)
        return low_rank.apply(state.w, request.update)

    def _projection(self, t: int, local: Classifier, mentee: Classifier) -> nn.Linear:
        """Return W_k at the start of round t."""
        d_k, d = local.head.in_features, mentee.head.in_features
        with seeds.scope(self.task.seed, "init", "projection", "client", self.participant.k):
            projection = nn.Linear(d, d_k, bias=False)
        if (state := self.participant.load_state(t, MenteeState)) is not None:
            projection.load_state_dict({"weight": state.projection})
        return projection.to(self.participant.device)
