"""FedKF, client half: train on the client's data and distil a teacher on generated images."""

from typing import final

import torch
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.records import Records, StateDict
from common.methods.fedkf import Options, Request
from common.models.classifier import Classifier
from common.models.generator import Generator
from common.techniques.datafree import DataFree, new_generator, resumed_generator
from common.training import optimise


@final
class ClientState(Records, kind="fedkf.Memory"):
    """State of client k."""

    generator: StateDict  #: θ_k
    adam: dict[int, StateDict]  #: Adam moments of θ_k


@final
class FedKF(GlobalCopy[Options, Request]):
    """Client with CE(h(w_k; x), y) and, from round 2, γ KL(h(ŵ; x̂) ‖ h(w_k; x̂)), x̂ = g(θ_k; z)."""

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        """Train ``net`` and the generator (equations 2-8); return scalars for the journal."""
        if request.t == 1:
            return super().learn(request, net)
        p, gamma, t = self.participant, self.options.gamma, request.t
        teacher = p.model(self.spec, request.w if request.w_hat is None else request.w_hat)
        generator, optimizer = self._generator(request)
        datafree = DataFree(
            self.task,
            generator,
            teacher,
            net,
            optimizer,
            *("latents", p.k, t),
            gamma=gamma,
            size=self.config.train.batch_size,
        )

        def loss(x: Tensor, y: Tensor, images: Tensor, logits: Tensor) -> Tensor:
            return p.loss(net(x), y) + gamma * datafree.distance(images, logits)

        metrics = p.train(t, net.parameters(), loss, datafree.batches)
        if optimizer is None:
            return metrics
        adam = optimise.moments(optimizer)
        p.save_state(t, ClientState(generator=upload(generator), adam=adam))
        return {**metrics, "generator_loss": datafree.mean_loss}

    def own_generator(self, t: int) -> Generator | None:
        """Return θ_k after round t, on the CPU; None if this client has not trained one."""
        state = self.participant.load_state(t + 1, ClientState)
        if state is None:
            return None
        generator = new_generator(self.task)
        generator.load_state_dict(state.generator)
        return generator

    def _generator(self, request: Request) -> tuple[Generator, torch.optim.Optimizer | None]:
        """Return θ_k and its optimiser, or the server's θ and None."""
        state = self.participant.load_state(request.t, ClientState)
        if request.theta is not None:
            generator = new_generator(self.task)
            generator.load_state_dict(request.theta)
            return self.task.place(generator), None
        theta, adam = (state.generator, state.adam) if state else (None, {})
        return resumed_generator(self.task, request.t, theta, adam)
