"""How fast is ``fit`` beside a bare PyTorch loop on the same model, batch and one thread?"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F

from common import models, seeds
from common.data.batches import Batches
from common.training import optimise
from common.training.device import arrange
from common.training.fit import fit

MEAN, STD = 0.4, 0.25


@final
@dataclass(frozen=True)
class Work:
    """One network on random images."""

    spec: str
    shape: tuple[int, int, int]
    batch: int
    images: int  #: of one measured block


WORKS = (
    Work("lenet5", (1, 28, 28), 64, 2048),
    Work("resnet8", (3, 32, 32), 64, 1024),
    Work("resnet18", (3, 32, 32), 64, 512),
)


def ratio(work: Work, pairs: int) -> tuple[float, float, float]:
    """Images per second of the bare loop and of ``fit`` (medians), and the median ratio of pairs.

    The two run in turn, so that a machine whose speed drifts slows both.
    """
    torch.set_num_threads(1)
    generator = seeds.stream(1, "bench")
    x = torch.randint(0, 256, (work.images, *work.shape), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (work.images,), generator=generator)
    bare, ours = _bare(work, x, y), _ours(work, x, y)
    bare(), ours()
    speeds = [(work.images / _seconds(bare), work.images / _seconds(ours)) for _ in range(pairs)]
    return (
        statistics.median(a for a, _ in speeds),
        statistics.median(b for _, b in speeds),
        statistics.median(b / a for a, b in speeds),
    )


def _bare(work: Work, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """What anyone would write: shuffle, index, normalise, cross-entropy, backward, SGD step."""
    net = models.build(work.spec, work.shape, 10, seed=1).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    generator = seeds.stream(1, "bare")

    def epoch() -> None:
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(work.batch):
            images = (x[rows].float() / 255 - MEAN) / STD
            optimizer.zero_grad()
            F.cross_entropy(net(images), y[rows]).backward()
            optimizer.step()

    return epoch


def _ours(work: Work, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    net = models.build(work.spec, work.shape, 10, seed=1).train()
    arrange(net, "auto")
    optimizer = optimise.make(net.parameters(), "sgd", 0.01, momentum=0.9)
    mean, std = (MEAN,) * work.shape[0], (STD,) * work.shape[0]
    generator = seeds.stream(1, "ours")
    batches = Batches(x, y, batch_size=work.batch, mean=mean, std=std, generator=generator)

    def epoch() -> None:
        fit(optimizer, batches, lambda x, y: F.cross_entropy(net(x), y), precision="fp32")

    return epoch


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
