"""FedGen, client half: train on the client's data and on generated features."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from common import seeds
from common.exchange.records import StateDict
from common.losses.distillation import kl
from common.methods.fedgen import Options, Reply, Request
from common.models.classifier import Classifier
from common.models.generator import FeatureGenerator
from common.techniques.datafree import new_feature_generator
from common.training.fit import Loss


@final
class FedGen(GlobalCopy[Options, Request]):
    """Client with the loss

    CE(f(w_k; x), y) + α_t CE(h_k(G(z, ŷ)), ŷ) + β_t KL(h_k(G(z, y)) ‖ f(w_k; x)).
    """

    reply_type = Reply

    def more(self, request: Request) -> dict[str, object]:
        return {"counts": self.participant.counts}

    def _generator(self, state: StateDict, net: Classifier) -> FeatureGenerator:
        o = self.options
        generator = self.task.place(new_feature_generator(self.task, net, o.noise_size, o.hidden))
        generator.load_state_dict(state)
        return generator.eval().requires_grad_(False)

    def loss(self, request: Request, net: Classifier) -> Loss:
        if request.generator is None or request.histogram is None:
            return super().loss(request, net)
        o, p, device = self.options, self.participant, self.task.device
        generator = self._generator(request.generator, net)
        draw = seeds.stream(self.task.seed, "features", p.k, request.t, device=device)
        histogram, size = request.histogram.to(device), self.config.train.batch_size
        alpha, beta = o.alpha * o.decay**request.t, o.beta * o.decay**request.t
        step = 0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal step
            step += 1
            logits = net(x)
            value = p.loss(logits, y)
            if o.until and step > o.until:
                return value
            if alpha:
                labels = torch.multinomial(histogram, size, replacement=True, generator=draw)
                z = generator.latents(size, o.noise, draw)
                value = value + alpha * F.cross_entropy(net.head(generator(z, labels)), labels)
            if beta:
                z = generator.latents(len(y), o.noise, draw)
                with torch.no_grad():
                    target = net.head(generator(z, y))
                value = value + beta * kl(target, logits)
            return value

        return loss
