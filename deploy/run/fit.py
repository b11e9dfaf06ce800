"""Decide which network fits a client's device before a run starts (``clock.fit``).

Memory and operations of training are measured at the run's batch size (``trial.py``), never
estimated by a formula. From batches of 16 samples on, memory is linear in the batch size to within
1 %, so that a second trial tells the largest batch that fits. Smaller batches are all measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch

from common.data.batches import lengths
from common.data.shares import share
from common.parse import parse
from common.settings.config import Config, entries, listed
from common.settings.profiles import is_assumed
from common.settings.section import Value
from common.training.task import Task, check_fleet
from deploy.report.table import size
from deploy.run.trial import Cost, Form, Kind, measure
from server_app.clock.devices import Devices
from server_app.clock.job import Job, bytes_of_step, time_of

LINEAR = 16  #: batch size from which on memory is linear, to within 1 %
LISTED = 8  #: most clients that a line of the start names

Flat = Mapping[str, Value]


@final
@dataclass
class Gauge:
    """Costs of the kinds of clients of a run, each measured once at a batch size.

    ``kinds``: those that are measured together. ``batch``: the run's batch size.
    """

    flat: Flat
    form: Form
    kinds: list[Kind]
    batch: int
    measured: dict[tuple[Kind, int], Cost] = field(default_factory=dict)

    def cost(self, kind: Kind) -> Cost:
        """Return what a kind of client needs."""
        return self._at(kind, self.batch)

    def largest_batch(self, kind: Kind, limit: float) -> int:
        """Return the largest batch that takes at most ``limit`` bytes; 0: none does.

        ``limit``: less than the run's batches take.
        """
        fits, exceeds = 1, self.batch  # BatchNorm needs two samples
        if self.batch > LINEAR:
            low, high = (self._at(kind, batch).memory for batch in (LINEAR, self.batch))
            if low <= limit:
                return LINEAR + int((limit - low) * (self.batch - LINEAR) / (high - low))
            exceeds = LINEAR
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self._at(kind, middle, alone=True).memory <= limit:
                fits = middle
            else:
                exceeds = middle
        return fits if fits > 1 else 0

    def _at(self, kind: Kind, batch: int, *, alone: bool = False) -> Cost:
        """Return the measured cost; ``alone``: of this kind without the others of the run."""
        if (kind, batch) not in self.measured:
            kinds = [kind] if alone else self.kinds
            found = measure(self.flat, self.form, kinds, batch)
            self.measured |= {(one, batch): cost for one, cost in found.items()}
        return self.measured[kind, batch]


@final
class Fit:
    """The decision for a run: which networks fit which clients.

    ``samples``: function from a client's number to its training samples; None: they are unknown.
    """

    def __init__(self, flat: Flat, form: Form, samples: Callable[[int], int] | None) -> None:
        self.flat, self.config, self.samples = flat, parse(flat), samples
        mean = (0.5,) * form.shape[0]
        task = (form.shape, form.classes, mean, mean, self.config, torch.device("cpu"))
        self.task, self.clock = Task(*task, form.of_bytes), self.config.clock
        self._device = Devices(self.config).of
        self.batch = self.config.train.batch_size
        self.clients = [k for k in range(self.config.run.clients) if self.config.profile_of(k)]
        kinds = dict.fromkeys(kind for k in self.clients for kind in self.options(k))
        self.gauge = Gauge(flat, form, list(kinds), self.batch)

    def options(self, k: int) -> list[Kind]:
        """Return what client k may train, the network with the most parameters first."""
        node, config = self.config.nodes.get(k), self.config
        share = node.size if node else None
        if node and node.model:
            return [Kind(node.model, share)]
        if self.clock.fit == "refuse":
            return [Kind(config.fleet[k % len(config.fleet)], share)]
        choices = dict.fromkeys(entries(self.clock.choices) or config.fleet)
        ordered = sorted(choices, key=self.task.parameters, reverse=True)
        return [Kind(architecture, share) for architecture in ordered]

    def decide(self) -> dict[int, Kind]:
        """Return what each client trains. Raises ``ValueError``, one line, if nothing fits one."""
        chosen = {}
        for k in self.clients:
            reasons = {}
            for kind in self.options(k):
                if not (why := self.why_not(k, kind)):
                    chosen[k] = kind
                    break
                reasons[kind] = why
            else:
                kind, why = list(reasons.items())[-1]
                none = "" if len(reasons) == 1 else f", the smallest of {len(reasons)} choices"
                of = f"client {k} ({self.config.profile_of(k)})"
                why += self._remedy(k, kind)
                raise ValueError(f"{of} cannot train {kind.architecture}{none}: {why}")
        return chosen

    def why_not(self, k: int, kind: Kind) -> str:
        """Return why a client cannot train a network, in words; empty if it can."""
        cost, clock, where = self.gauge.cost(kind), self.clock, self._device(k)
        if cost.memory > (limit := self.limit(k)):
            return (
                f"batches of {self.batch} need {cost.memory:,.0f} bytes, the device has "
                f"{where.memory:,.0f} · clock.memory-share = {clock.memory_share:g}: {limit:,.0f}"
            )
        if clock.fit_seconds and (seconds := self._seconds(k, cost)) > clock.fit_seconds:
            limits = f"clock.fit-seconds = {clock.fit_seconds:g}"
            return f"a round is predicted to take {seconds:.6g} s, {limits}"
        if clock.fit_mb and sum(cost.moved) > 1e6 * clock.fit_mb:
            limits = f"clock.fit-mb = {clock.fit_mb:g}"
            return f"its messages of a round have {sum(cost.moved) / 1e6:.6g} MB, {limits}"
        return ""

    def _remedy(self, k: int, kind: Kind) -> str:
        """Return the largest batch that fits, in words; empty if memory is not the reason."""
        if self.gauge.cost(kind).memory <= (limit := self.limit(k)):
            return ""
        batch = self.gauge.largest_batch(kind, limit)
        return (
            f"; the largest train.batch-size that fits is {batch}" if batch else "; no batch fits"
        )

    def limit(self, k: int) -> float:
        """Return the bytes that training may take on client k's device."""
        return (self._device(k).memory or 0.0) * self.clock.memory_share

    def _seconds(self, k: int, cost: Cost) -> float:
        """Return the predicted seconds of client k's job in a round, without jitter."""
        train = self.config.train
        if train.steps:
            batches = [self.batch] * train.steps
        elif self.samples is not None:
            batches = list(lengths(self.samples(k), self.batch, train.drop_last)) * train.epochs
        else:
            raise ValueError(
                f"clock.fit-seconds = {self.clock.fit_seconds:g} needs train.steps above 0, "
                "because the clients' samples are on other machines"
            )
        operations = len(batches) * cost.operations * sum(batches) / (len(batches) * self.batch)
        moved = bytes_of_step(train, self.task.parameters(cost.trained))
        job = Job(*cost.moved, len(batches), round(operations))
        return sum(time_of(job, self._device(k), cost.trained, moved))

    def lines(self, chosen: Mapping[int, Kind]) -> list[str]:
        """Return a line for each network and profile: which clients get it, and what it needs."""
        groups: dict[tuple[Kind, str], list[int]] = {}
        for k, kind in chosen.items():
            groups.setdefault((kind, self.config.profile_of(k)), []).append(k)
        lines = []
        for (kind, profile), ks in groups.items():
            names = ", ".join(map(str, ks[:LISTED])) + ", …" * (len(ks) > LISTED)
            need, limit = self.gauge.cost(kind).memory, self.limit(ks[0])
            clients = f"client{'s' * (len(ks) > 1)} {names} ({profile})"
            lines.append(f"{clients}: {kind.architecture}, {size(need)} of {size(limit)}")
        return lines


def fitted(
    flat: Flat, config: Config, show: Callable[[str], None], *, here: bool
) -> dict[str, Value]:
    """Return the run config with the networks that ``clock.fit`` chooses; ``show`` gets lines.

    ``here``: whether the data of all clients are on this machine. A resumed run keeps its networks.

    Raises ``ValueError``, one line, for a client that no network fits.
    """
    clock, run, seed = config.clock, config.run, config.partition_seed
    own = [node.profile or "" for node in config.nodes.values()]
    names = dict.fromkeys([*listed(run.profiles), *own])
    if assumed := [name for name in names if name and is_assumed(name, config.profiles)]:
        of = ", ".join(assumed)
        show(f"clock: the efficiency of {of} is assumed; fedmosaic profile measures it")
    if clock.fit == "off" or run.resume:
        return dict(flat)
    if not run.clients:
        raise ValueError(
            f"clients = 0 is not allowed with clock.fit = {clock.fit!r} where the nodes know their "
            "number; set clients"
        )

    def samples(k: int) -> int:
        return len(share(config.data_of(k, config.node(k)), k, run.clients, seed).train)

    fit = Fit(flat, Form.anywhere(config), samples if here else None)
    chosen = fit.decide()
    if clock.fit == "refuse":
        return dict(flat)
    models = {f"node.{k}.model": kind.architecture for k, kind in chosen.items()}
    complete: dict[str, Value] = {**flat, **models}
    check_fleet(replace(fit.task, config=parse(complete)))
    for line in fit.lines(chosen):
        show(line)
    return complete
