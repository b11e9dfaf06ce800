"""Ditto, client half: FedAvg's client, and a personal model that stays near the received one."""

from typing import final

from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.records import Records, StateDict
from common.losses.gradients import proximal
from common.methods.ditto import Options, Request
from common.models.classifier import Classifier


@final
class ClientState(Records, kind="ditto.State"):
    """State of client k after a round."""

    v: StateDict  #: the personal model v_k


@final
class Ditto(GlobalCopy[Options, Request]):
    """Client that trains w_k on CE, and v_k on CE(f(v_k; x), y) + λ/2 ‖v_k − w‖²."""

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        metrics = super().learn(request, net)
        p, o, own = self.participant, self.options, self.personal(request.t).train()
        named = list(own.named_parameters())
        received = {name: request.w[name].to(self.task.device) for name, _ in named}

        plain = self.loss(request, own)

        def near(x: Tensor, y: Tensor) -> Tensor:
            return plain(x, y) + o.lambda_prox * proximal(named, received)

        loss = near if o.lambda_prox else plain
        personal = p.train(request.t, own.parameters(), loss, times=o.epochs)
        p.save_state(request.t, ClientState(v=upload(own)))
        return {**metrics, **{f"personal_{name}": value for name, value in personal.items()}}

    def personal(self, t: int) -> Classifier:
        """Return v_k at the start of round t."""
        state = self.participant.load_state(t, ClientState)
        if state is None:
            return self.participant.initial(self.spec)
        return self.participant.model(self.spec, state.v)

    def own_model(self, t: int) -> Classifier:
        return self.personal(t + 1)
