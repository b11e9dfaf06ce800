"""Measure this machine as a device profile: the rate of matrix products, and training of networks.

F is the rate of a float32 matrix product. A training step of an architecture takes o + O/(F·e)
seconds with O counted operations. Its times at two batch sizes give e and o.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

import torch
from torch import nn

from common import models
from common.data import kinds
from common.keys import PROFILE
from common.training import costs, device
from common.training.fit import fit

SIDE = 768  #: rows and columns of the matrices whose product gives F
BATCHES = (4, 64)  #: sizes of the batches whose step times give e and o
COPIED = 1 << 26  #: bytes of the tensor whose copy gives the memory bandwidth
LEAST_SHARE = 1e-4  #: smallest e that is written
SECONDS = 0.3  #: seconds for which a measurement is repeated, at least
REPEATS = 5  #: number of repetitions of a measurement, at least


@final
@dataclass(frozen=True)
class Step:
    """Training steps of one architecture: operations and seconds at each of ``BATCHES``.

    ``efficiency``: e, in (0, 1]. ``overhead``: o in seconds, at least 0.
    """

    architecture: str
    operations: tuple[int, ...]
    seconds: tuple[float, ...]
    efficiency: float
    overhead: float


@final
@dataclass(frozen=True)
class Measured:
    """A measured machine: F in operations per second, memory in bytes, bandwidth in bytes/s."""

    name: str
    flops: float
    memory: float
    memory_bandwidth: float
    steps: tuple[Step, ...]
    threads: int
    device: str

    @property
    def efficiency(self) -> float:
        """Return e of architectures that were not measured: the median of the measured ones."""
        return median(step.efficiency for step in self.steps)

    @property
    def overhead(self) -> float:
        """Return o in seconds: the median over the measured architectures."""
        return median(step.overhead for step in self.steps)

    def toml(self) -> str:
        """Return the section ``[profile.NAME]`` with the measured numbers as comments."""
        shares = ",".join(f"{step.architecture}={step.efficiency:.3g}" for step in self.steps)
        lines = [
            f"[profile.{self.name}]",
            f"# {self.device}, {self.threads} torch thread{'s' * (self.threads > 1)}",
            f"flops = {self.flops:.4g} # float32 matrix product of side {SIDE}",
            f"efficiency = {self.efficiency:.3g} # median of the architectures below",
            f'efficiency-by = "{shares}"',
            f"step-overhead = {self.overhead:.3g} # seconds, median",
            f"memory = {self.memory:.4g}",
            f"memory-bandwidth = {self.memory_bandwidth:.4g} # read and written by a copy",
            'network = "lan"',
        ]
        for step in self.steps:
            pairs = zip(BATCHES, step.operations, step.seconds, strict=True)
            times = ", ".join(
                f"batch {size}: {1e3 * seconds:.3g} ms for {operations:,} operations"
                for size, operations, seconds in pairs
            )
            lines.append(f"# {step.architecture}: {times}; overhead {1e3 * step.overhead:.3g} ms")
        return "\n".join(lines)


def measure(name: str, fleet: Sequence[str], threads: int, where: str) -> Measured:
    """Return the measured profile of this machine.

    ``fleet``: architectures to train, each with its own input shape. ``where``: the device, as the
    setting ``device``. Settles the number of torch threads of this process.

    Raises ``ValueError``, one line, for an invalid name, an unknown architecture, and a device that
    is missing.
    """
    if not PROFILE.fullmatch(f"profile.{name}"):
        raise ValueError(
            f"--name {name!r} is not allowed; it should be at most 40 letters, digits, '_' and "
            "'-', beginning with a letter or digit"
        )
    specs = list(dict.fromkeys(fleet))
    for spec in specs:
        row = models.architecture(models.parse(spec)[0])
        models.check(spec, row.input, row.outputs)
    device.settle(threads)
    chosen = device.choose(where)
    left, right = (torch.randn(SIDE, SIDE, device=chosen) for _ in range(2))
    product = _seconds(lambda: torch.mm(left, right), chosen)
    flops = 2 * SIDE**3 / product
    source = torch.ones(COPIED // 4, device=chosen)
    target = torch.empty_like(source)
    copy = _seconds(lambda: target.copy_(source), chosen)
    steps = tuple(_step(spec, flops, chosen) for spec in specs)
    return Measured(
        name, flops, _memory(chosen), 2 * COPIED / copy, steps, torch.get_num_threads(), str(chosen)
    )


def line(flops: float, operations: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return e and o of the line t = o + O/(F·e) through two step times.

    e is at most 1, and o at least 0. Where the larger batch takes no more time, e is the share of F
    that it reaches.
    """
    (few, many), (short, long) = operations, seconds
    rate = (many - few) / (long - short) if long > short else many / long
    efficiency = min(max(rate / flops, LEAST_SHARE), 1.0)
    return efficiency, max(short - few / (flops * efficiency), 0.0)


def _step(spec: str, flops: float, where: torch.device) -> Step:
    """Measure training steps of an architecture, with SGD and momentum, at each of ``BATCHES``."""
    row = models.architecture(models.parse(spec)[0])
    net = device.arrange(models.build(spec, row.input, row.outputs, seed=0), "auto").to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    operations, seconds = [], []
    for size in BATCHES:
        x = kinds.random(size, row.input).to(where)
        targets = size * row.input[0] if kinds.every_of(row.input) else size
        y = torch.arange(targets, device=where) % row.outputs

        def train(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            fit(optimizer, [(x, y)], lambda x, y: loss(net(x).flatten(0, -2), y), precision="fp32")

        with costs.counting(True) as counter:
            train()
        operations.append(counter.total)
        seconds.append(_seconds(train, where))
    return Step(spec, tuple(operations), tuple(seconds), *line(flops, operations, seconds))


def _seconds(work: Callable[[], object], where: torch.device) -> float:
    """Return the smallest seconds of ``work``, after one call that is not timed."""
    times: list[float] = []
    work()
    while len(times) < REPEATS or sum(times) < SECONDS:
        _wait(where)
        start = time.perf_counter()
        work()
        _wait(where)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(where: torch.device) -> None:
    """Wait for the work that was sent to a GPU."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _memory(where: torch.device) -> float:
    """Return the bytes of a GPU's memory, or of this machine's."""
    if (known := device.memory(where)) is not None:
        return float(known[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
