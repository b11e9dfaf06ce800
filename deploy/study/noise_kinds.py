"""What the kinds of noise look like, and how much of a server step they take."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from matplotlib.figure import Figure

from common import device, noise, seeds
from common.data import load
from common.losses.distillation import kl
from common.noise import NOISES
from common.parse import parse
from common.section import Value
from common.task import Task, global_spec
from deploy.report.style import frames, style
from deploy.report.table import Table
from server_app.distil.noise import distil, weighted
from server_app.methods.fedorion import FedORION

SAMPLES = 8


@style(ticks=False)
def draw(shape: tuple[int, int, int] = (3, 32, 32), seed: int = 1) -> Figure:
    """Eight samples of each kind, a row each; values from −2.5 to 2.5 are drawn from dark to light.

    Raises ``ValueError`` unless samples have one channel (grey) or three.
    """
    if shape[0] not in (1, 3):
        raise ValueError(f"samples of {shape[0]} channels are no pictures: 1 or 3 can be drawn")
    size = (SAMPLES * 1.05 + 1.1, len(NOISES) * 1.1)
    figure, grid = frames(size, len(NOISES), SAMPLES)
    for row, (kind, sampler) in zip(grid, NOISES.items(), strict=True):
        z = next(sampler(64, shape, seeds.stream(seed, "noise")))[:SAMPLES]
        images = (z / 5 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        for axes, image in zip(row, images.numpy(), strict=True):
            axes.imshow(image.squeeze(-1) if shape[0] == 1 else image, cmap="gray", vmin=0)
        row[0].set_ylabel(kind)
    return figure


@final
@dataclass(frozen=True)
class Time:
    """Seconds for one batch of a kind, and for one whole step of distillation on it."""

    kind: str
    noise: float
    step: float

    @property
    def share(self) -> float:
        """The noise's share of the step, in [0, 1]."""
        return min(self.noise / self.step, 1.0)


def times(flat: Mapping[str, Value], batches: int = 3) -> list[Time]:
    """Time each kind in FedORION's server step as ``flat`` configures it.

    The teachers are the untrained models of the clients of one round. Each kind is timed three
    times over ``batches`` batches and the least counts, so that other work on the machine does not;
    a step has its part in setting the networks up.
    """
    return [_time(kind, flat, batches) for kind in NOISES]


def _time(kind: str, flat: Mapping[str, Value], batches: int) -> Time:
    settings: dict[str, Value] = {"method": "fedorion", "noise.kind": kind}
    config = parse({**flat, **settings, "noise.epochs": 1, "noise.batches": batches})
    device.settle(config.run.threads)
    task = Task.of(config, load(config.data), device.choose(config.run.device))
    method = FedORION(task, global_spec(task))
    size = config.run.per_round or config.run.clients or len(config.fleet)
    specs = [config.fleet[k % len(config.fleet)] for k in range(size)]
    teachers = [(name, dict(method.build(name).state_dict())) for name in specs]
    transfer = weighted(kl, [1 / size] * size, 1.0)

    def noise_alone() -> None:
        stream = seeds.stream(task.seed, "noise", device=task.device)
        for _ in noise.batches(kind, batches, config.noise.batch_size, task.shape, stream):
            pass

    def now() -> float:
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        return time.perf_counter()

    def clocked(work: Callable[[], object]) -> float:
        start = now()
        work()
        return now() - start

    step = partial(distil, method, 1, teachers, transfer)
    alone, whole = (min(clocked(work) for _ in range(3)) for work in (noise_alone, step))
    return Time(kind, alone / batches, whole / batches)


def table(times: Sequence[Time]) -> Table:
    """Milliseconds of a batch and of a step, and the noise's share of the step."""
    rows = [
        (t.kind, f"{t.noise * 1e3:.1f}", f"{t.step * 1e3:.1f}", f"{t.share:.1%}") for t in times
    ]
    return Table(("noise", "ms a batch", "ms a step", "share of the step"), rows)
