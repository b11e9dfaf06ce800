"""Predicted jobs: what a client's next job moves and computes, before it runs."""

import math
from collections.abc import Mapping
from functools import cache
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from common import seeds
from common.data import kinds
from common.training import costs
from common.training.fit import fit
from common.training.task import Task
from server_app.clock.job import Job


@final
class Predictor:
    """Predicts jobs by each client's newest one, or by its network and samples before the first.

    Before the first one, operations are those of cross-entropy on full batches, and the payloads
    have the size of the network. A method that trains more than that takes longer in round 1.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.newest: dict[int, Job] = {}  #: newest job of each client, also of late ones
        self._of_sample = cache(self._operations)
        self._size = cache(self._bytes)

    def job(self, k: int, architecture: str, n: int) -> Job:
        """Return the predicted job of client k with n training samples and full local work."""
        steps = self.task.steps(n)
        if (newest := self.newest.get(k)) and newest.steps:
            operations = newest.operations * steps // newest.steps
            return newest._replace(steps=steps, operations=operations)
        train = self.task.config.train
        size = self._size(architecture)
        samples = steps * train.batch_size if train.steps else train.epochs * n
        return Job(size, size, steps, samples * self._of_sample(architecture))

    def _bytes(self, architecture: str) -> int:
        """Return the bytes of a network's weights and buffers."""
        return sum(w.numel() * w.element_size() for w in self.task.expected(architecture).values())

    def _operations(self, architecture: str) -> int:
        """Return the operations of one training step divided by its samples, on a full batch."""
        task, size = self.task, max(self.task.config.train.batch_size, 2)
        net = task.build(architecture, name=("clock",)).train()
        x = kinds.zeros(size, task.shape, task.device)

        def loss(x: Tensor) -> Tensor:
            logits = net(x).flatten(0, -2)
            return F.cross_entropy(logits, logits.argmax(1))

        # outside of the block that counts the server's own operations
        with (
            _disable_current_modes(),
            seeds.scope(task.seed, "clock"),
            costs.counting(True) as counted,
        ):
            step = torch.optim.SGD(net.parameters(), lr=0.0)
            fit(step, [(x,)], loss, precision="fp32")
        return counted.total // size


def quantile(values: Mapping[int, int], share: float) -> int:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values.values())
    return ordered[max(math.ceil(round(share * len(ordered), 6)) - 1, 0)]
