"""How good is a network on samples it was not trained on?"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from common import seeds
from common.models.batchnorm import batch_statistics, recalibrate
from common.models.classifier import Classifier
from common.task import Task


class Result(NamedTuple):
    accuracy: float  #: share of samples whose largest logit is the label's, in [0, 1]
    loss: float  #: mean cross-entropy in nats


@torch.no_grad()
def evaluate(
    net: Classifier,
    x: Tensor,
    y: Tensor,
    task: Task,
    *,
    bn: str = "",
    name: tuple[str | int, ...] = ("score",),
) -> Result:
    """Score ``net`` on x [n, C, H, W] and y [n], n ≥ 1.

    ``bn``, by default ``score.bn``: ``running`` statistics; ``batch``: those of each test batch, in
    an order drawn from the stream ``name`` so that no batch holds one class alone (transductive:
    the answer for one image depends on its neighbours); ``recalibrated``: running statistics
    re-estimated on x first.
    """
    bn, size = bn or task.config.score.bn, task.config.score.batch_size
    if len(x) == 1:
        bn = "running"
    if bn != "running":
        order = torch.randperm(len(x), generator=seeds.stream(task.seed, *name))
        x, y = x[order.to(x.device)], y[order.to(y.device)]
        size = -(-len(x) // -(-len(x) // size))  # equal batches, so that none has one sample

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        return task.in_order(x, y, size)

    if bn == "recalibrated":
        net = copy.deepcopy(net)
        recalibrate(net, (images for images, _ in batches()))
    was_training = net.training
    net.eval()
    correct, loss = 0, 0.0
    with batch_statistics(net) if bn == "batch" else nullcontext():
        for images, labels in batches():
            logits = net(images)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    net.train(was_training)
    return Result(correct / len(x), loss / len(x))
