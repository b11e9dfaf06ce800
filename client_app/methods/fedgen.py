"""FedGen, client half: the own data and generated features (contract: common/methods/fedgen.py)."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common import seeds
from common.losses.distillation import kl
from common.methods.fedgen import Config, Down, Up
from common.models.classifier import Classifier
from common.models.feature_generator import FeatureGenerator


@final
class FedGen(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return self.participant.global_spec

    def train(self, down: Down) -> Up:
        p = self.participant
        net = p.model(p.global_spec, down.w).train()
        if down.generator is None:
            metrics = p.train(down.t, net.parameters(), lambda x, y: F.cross_entropy(net(x), y))
        else:
            metrics = self._guided(down, net)
        return Up(
            experiment=p.experiment,
            t=down.t,
            k=p.k,
            metrics=metrics,
            w=upload(net),
            counts=p.counts,
        )

    def _guided(self, down: Down, net: Classifier) -> dict[str, float]:
        p = self.participant
        c: Config = p.config.method
        assert down.generator is not None and down.histogram is not None
        with seeds.scope(p.config.run.seed, "init", "generator"):
            drawn = FeatureGenerator(
                c.noise_size, p.dataset.num_classes, net.head.in_features, c.hidden
            )
        generator = p.place(drawn)
        generator.load_state_dict(down.generator)
        generator.eval().requires_grad_(False)
        draw = seeds.stream(p.config.run.seed, "features", p.k, down.t, device=p.device)
        histogram, size = down.histogram.to(p.device), p.config.train.batch_size
        alpha, beta = c.alpha * c.decay**down.t, c.beta * c.decay**down.t
        step = 0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal step
            step += 1
            logits = net(x)
            value = F.cross_entropy(logits, y)
            if c.until and step > c.until:
                return value
            if alpha:
                wanted = torch.multinomial(histogram, size, replacement=True, generator=draw)
                z = generator.latents(size, c.noise, draw)
                value = value + alpha * F.cross_entropy(net.head(generator(z, wanted)), wanted)
            if beta:
                z = generator.latents(len(y), c.noise, draw)
                with torch.no_grad():
                    target = net.head(generator(z, y))
                value = value + beta * kl(target, logits)
            return value

        return p.train(down.t, net.parameters(), loss)
