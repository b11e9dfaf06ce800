"""Compare the jobs' times on a run's virtual clock with those that its server measured."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

from common.metrics import MANY
from common.parse import parse
from common.settings.config import Config
from common.settings.profiles import Device, device
from deploy.report.read import Run, read
from deploy.report.table import NONE, Table, duration, joules, number, percent
from deploy.settings import load_run

COMPUTE = 0.9  #: least share of the virtual time in counted operations for an efficiency
FLOPS = "flops"  #: name in ``client_metrics``; ``common.training.costs`` would import torch
Jobs = Sequence[tuple[float, float, float]]
"""Virtual seconds, measured seconds and operations (0: unknown) of each job."""
ENERGY = "it follows from the profiles' watts: for ranking runs, no measurement"


@final
@dataclass(frozen=True)
class ClientTimes:
    """Client k's jobs that have both times: mean seconds on the virtual clock, and measured.

    ``efficiency``: value of the profile's ``efficiency`` with which both would be equal; None
    unless operations take ``COMPUTE`` of the virtual time, without random factors.
    """

    k: int
    profile: str
    architecture: str
    jobs: int
    virtual: float
    measured: float
    ratio: float
    efficiency: float | None


@final
@dataclass(frozen=True)
class Times:
    """Times of a run by client, and the joules of its jobs if the devices have their power."""

    clients: list[ClientTimes]
    energy: float | None


def compare(folder: Path) -> Times:
    """Return the times of the run in ``folder``.

    Raises ``ValueError``, one line, for a run without a clock, or without measured seconds.
    """
    run, config = read(folder), parse(load_run(folder, private=True))
    rounds = [(entry, entry.clock) for entry in run.entries if entry.clock]
    if not rounds:
        raise ValueError(f"the run in {folder} has no virtual clock: it has no round with profiles")
    pairs: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for entry, clock in rounds:
        for k in sorted(clock.clients.keys() & entry.measured.keys()):
            operations = entry.client_metrics.get(k, {}).get(FLOPS, 0.0)
            pairs[k].append((clock.clients[k], entry.measured[k], operations))
    if not pairs:
        why = "[privacy] withholds them" if run.private else "no reply was timed"
        raise ValueError(f"the run in {folder} has no measured seconds of clients: {why}")
    energies = [clock.energy for _, clock in rounds if clock.energy is not None]
    clients = [_times(run, config, k, pairs[k]) for k in sorted(pairs)]
    return Times(clients, sum(energies) if energies else None)


def _times(run: Run, config: Config, k: int, jobs: Jobs) -> ClientTimes:
    """Return the times of client k; ``jobs``: virtual and measured seconds, and operations.

    Jobs without operations, such as late ones, have no part in the efficiency.
    """
    virtual, measured, _ = _means(jobs)
    counted = [job for job in jobs if job[2]]
    name = config.profile_of(k)
    model = next((member.model for member in run.members if member.k == k), "?")
    efficiency = None
    if counted and not (config.clock.jitter or config.clock.bandwidth_sigma):
        efficiency = _efficiency(device(name, config.profiles), model, *_means(counted))
    ratio = measured / virtual if virtual else float("inf")
    return ClientTimes(k, name, model, len(jobs), virtual, measured, ratio, efficiency)


def _means(jobs: Jobs) -> tuple[float, float, float]:
    """Return the mean of each of the jobs' numbers."""
    virtual, measured, operations = map(fmean, zip(*jobs, strict=True))
    return virtual, measured, operations


def _efficiency(
    used: Device, model: str, virtual: float, measured: float, operations: float
) -> float | None:
    """Return the e of O / (F·e) with which the virtual seconds would be the ``measured`` ones.

    ``operations``: O, mean of a job. None if O takes less than ``COMPUTE`` of the virtual time, or
    if the rest of that time alone is longer than what was measured.
    """
    computing = operations / used.rate(model)
    left = measured - (virtual - computing)
    if computing < COMPUTE * virtual or left <= 0:
        return None
    return operations / (used.flops * left)


def table(times: Times) -> Table:
    """Return a row for each client, for the first ``MANY``."""
    header = ("client", "profile", "architecture", "jobs", "virtual", "measured", "ratio", "e")
    rows = []
    for one in times.clients[:MANY]:
        shares = (f"{one.ratio:.3g}", NONE if one.efficiency is None else f"{one.efficiency:.3g}")
        spent = (duration(one.virtual), duration(one.measured))
        rows.append((str(one.k), one.profile, one.architecture, str(one.jobs), *spent, *shares))
    return Table(header, rows, "rllr")


def remarks(times: Times) -> list[str]:
    """Return lines that explain the table."""
    lines = [
        "Means of a job; ratio: measured over virtual seconds. e: efficiency with which both would "
        f"be equal, where operations take at least {percent(COMPUTE, 0)} of the virtual time."
    ]
    if (more := len(times.clients) - MANY) > 0:
        lines.append(f"{number(more)} more clients are in the answer of --json.")
    if times.energy is not None:
        lines.append(f"Energy of all jobs: {joules(times.energy)}; {ENERGY}.")
    return lines
