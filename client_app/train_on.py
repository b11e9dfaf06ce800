"""Training on other samples than the client's own: the public set, or both together."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.participant import Participant
from common import optimise, seeds
from common.data.batches import Batches, evaluation_batches
from common.fit import Loss, fit
from common.models.classifier import Classifier


def train_on(
    p: Participant,
    net: Classifier,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    *,
    epochs: int,
    name: str,
    t: int,
) -> dict[str, float]:
    """``epochs`` of ``loss`` on images x [n, C, H, W] with targets y [n, ...], as [train] says.

    ``name``: of the draws, with k and t. ``loss`` takes normalised images and their targets.
    """
    train, data, seed = p.config.train, p.dataset, p.config.run.seed
    batches = Batches(
        x,
        y,
        batch_size=train.batch_size,
        mean=data.mean,
        std=data.std,
        augment=p.config.data.augment,
        standardize=p.config.data.standardize,
        generator=seeds.stream(seed, "batches", name, p.k, t),
        device=p.device,
    )
    optimizer = optimise.make(
        net.parameters(),
        train.optimizer,
        train.lr,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
    )
    net.train()
    with seeds.scope(seed, name, p.k, t):
        return fit(
            optimizer,
            (batch for _ in range(epochs) for batch in batches),
            loss,
            clip=train.clip,
            precision=p.config.run.precision,
        )


@torch.no_grad()
def logits_on(p: Participant, net: Classifier, x: Tensor) -> Tensor:
    """The network's logits [n, C] on images x, in evaluation mode, on the CPU."""
    net.eval()
    nothing = torch.zeros(len(x), dtype=torch.int64)
    batches = evaluation_batches(
        x,
        nothing,
        batch_size=p.config.score.batch_size,
        mean=p.dataset.mean,
        std=p.dataset.std,
        standardize=p.config.data.standardize,
        device=p.device,
    )
    return torch.cat([net(images).float().cpu() for images, _ in batches])
