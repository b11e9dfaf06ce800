"""Time and energy of one client's job on its device, from counted operations and bytes.

    t = 2λ + 8·D/down + 8·U/up + s·o + O/(F·e) + s·c·4P/b_m

D, U: bytes of the arrays in the payloads; s: optimiser steps; O: operations; P: parameters of the
client's network; c: tensors of that size that a step reads or writes. λ, down, up, o, F, e and b_m
are those of the device's profile.
"""

import math
from typing import NamedTuple

from common import seeds
from common.settings.clock import Clock
from common.settings.config import Train
from common.settings.profiles import Device
from common.training import optimise

SECOND = 1_000_000  #: microseconds
LEAST_BANDWIDTH = 0.1  #: smallest factor of a drawn bandwidth
MOMENTS = 7  #: tensors that a step of Adam reads or writes: two moments, gradient, weights


class Job(NamedTuple):
    """What a job moves and computes: bytes of arrays, optimiser steps and operations."""

    down: int = 0
    up: int = 0
    steps: int = 0
    operations: int = 0

    def plus(self, other: "Job") -> "Job":
        """Return the sum of two jobs of one client in a round."""
        return Job(*(a + b for a, b in zip(self, other, strict=True)))


class Factors(NamedTuple):
    """Random factors of a job: of its time at work, and of its two bandwidths."""

    work: float = 1.0
    down: float = 1.0
    up: float = 1.0

    @classmethod
    def drawn(cls, clock: Clock, seed: int, *name: str | int) -> "Factors":
        """Return the factors of the job ``name``, from a stream of its own."""
        if not (clock.jitter or clock.bandwidth_sigma):
            return cls()
        z = seeds.rng(seed, "clock", *name).standard_normal(3)
        work = math.exp(clock.jitter * z[0] - clock.jitter**2 / 2)
        down, up = (max(1 + clock.bandwidth_sigma * x, LEAST_BANDWIDTH) for x in z[1:])
        return cls(work, float(down), float(up))


EXACT = Factors()


class Time(NamedTuple):
    """Seconds of a job: communication and work."""

    communication: float
    work: float

    @property
    def micros(self) -> int:
        """Microseconds of the job, rounded up, so that sums are exact and ties are defined."""
        return math.ceil(round((self.communication + self.work) * SECOND, 3))

    def energy(self, device: Device) -> float | None:
        """Return joules of the job; None without the device's power. For ranking only."""
        if device.power is None:
            return None
        return device.power * self.work + (device.radio_power or 0.0) * self.communication


def time_of(
    job: Job, device: Device, architecture: str, moved: float, factors: Factors = EXACT
) -> Time:
    """Return the time of a job; ``moved``: bytes that a step reads and writes, c · 4P."""
    communication = (
        2 * device.latency
        + 8 * job.down / (device.down * factors.down)
        + 8 * job.up / (device.up * factors.up)
    )
    traffic = moved / device.memory_bandwidth if device.memory_bandwidth else 0.0
    work = job.steps * (device.step_overhead + traffic) + job.operations / device.rate(architecture)
    return Time(communication, work * factors.work)


def bytes_of_step(train: Train, parameters: int) -> float:
    """Return c · 4P: c is 3 for SGD, 5 with momentum or one moment, 7 with two moments."""
    if optimise.is_sgd(train):
        tensors = 5 if train.momentum else 3
    else:
        tensors = MOMENTS if "adam" in train.optimizer.lower() else 5
    return tensors * 4.0 * parameters
