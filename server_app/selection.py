"""Selection of the clients of a round: by their tags and by a rule (``select.by``).

A rule is a function of the candidates, the number of clients to select and a random generator. It
returns the numbers k of the selected clients. The user's own is a plug-in of the kind
``selections``:

    def newest(candidates, size, rng):
        last = {c.k: max(c.metrics, default=0) for c in candidates}
        return sorted(last, key=last.get, reverse=True)[:size]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import cast, final

import numpy as np

from common.errors import at
from common.exchange.protocol import ClientInfo
from common.journal import Entry
from common.settings import plugins
from common.settings.config import Config, listed
from server_app.candidate import LOSS, Rule, uniform, weighted
from server_app.candidate import Candidate as Candidate
from server_app.selection_by_time import by_tier, oort


def by_samples(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with a probability that grows with their training samples."""
    return weighted(candidates, [candidate.n for candidate in candidates], size, rng)


def by_loss(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with a probability that grows with the training loss of their last reply.

    A client without one has the mean loss of the others.
    """
    last = [_last_loss(candidate) for candidate in candidates]
    known = [loss for loss in last if loss is not None]
    mean = fmean(known) if known else 1.0
    weights = [mean if loss is None else loss for loss in last]
    return weighted(candidates, weights, size, rng)


RULES: dict[str, Rule] = {
    **{"uniform": uniform, "samples": by_samples, "loss": by_loss},
    **{"oort": oort, "tier": by_tier},
}
"""Rules by name."""
ON_CLOCK = (oort, by_tier)  #: rules that need the times of a virtual clock
TIMELESS = (uniform, by_samples, by_loss)  #: rules that do not read them


def _last_loss(candidate: Candidate) -> float | None:
    """Return the newest training loss, at least 0; None if no reply has one."""
    losses = [m[LOSS] for _, m in sorted(candidate.metrics.items()) if LOSS in m]
    return max(losses[-1], 0.0) if losses else None


def find(name: str) -> Rule:
    """Return the rule ``name``. Raises ``ValueError``, one line, if there is none."""
    if name in RULES:
        return RULES[name]
    rule = plugins.required("selections", name, RULES, f"select.by = {name!r} is unknown")
    if not callable(rule):
        raise ValueError(f"selection {name!r} is of type {type(rule).__name__}, not a function")
    return cast("Rule", rule)


def rule_of(config: Config) -> Rule:
    """Return the rule of a run's ``select.by``.

    Raises ``ValueError``, one line, if there is none, or if it needs a clock and the run has none.
    """
    rule = find(config.select.by)
    if rule in ON_CLOCK and not config.on_clock:
        raise ValueError(
            f'select.by = "{config.select.by}" needs profiles: without devices a run has no clock'
        )
    return rule


@final
class Selection:
    """The selection of one run, with the metrics and times of the clients that its rule reads.

    ``predicted``: seconds of a client's next job on the virtual clock, by client number.
    """

    def __init__(self, config: Config) -> None:
        self.by, self.rule = config.select.by, rule_of(config)
        self.tags = listed(config.select.tags)
        self.size = math.ceil(round(config.clock.over_selection * config.run.per_round, 6))
        self.metrics: dict[int, dict[int, Mapping[str, float]]] = {}  #: by client and round
        self.durations: dict[int, dict[int, float]] = {}  #: by client and round
        self.predicted: Callable[[int], float] = lambda k: 0.0

    def add(self, entry: Entry) -> None:
        """Add metrics of a round's replies and the times of its jobs.

        Memory grows with the rounds for ``oort`` and plug-ins, for which all metrics are kept.
        """
        if self.rule in (uniform, by_samples, by_tier):
            return
        for k, metrics in entry.client_metrics.items():
            loss = {LOSS: metrics[LOSS]} if LOSS in metrics else {}
            if self.rule is not by_loss:
                kept = loss if self.rule is oort else metrics
                self.metrics.setdefault(k, {})[entry.round] = kept
            elif loss:
                self.metrics[k] = {entry.round: loss}
        if entry.clock and self.rule is not by_loss:
            for k, seconds in entry.clock.clients.items():
                self.durations.setdefault(k, {})[entry.round] = seconds

    def check_tags(self, known: set[str]) -> None:
        """Raise ``ValueError`` if no client has one of the tags; ``known``: the clients' tags."""
        if missing := [tag for tag in self.tags if tag not in known]:
            others = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"select.tags: no client has the tag {missing[0]!r}; the clients' tags are {others}"
            )

    def allows(self, info: ClientInfo) -> bool:
        """Return whether a client has all tags."""
        return {*self.tags} <= {*info.tags}

    def draw(
        self, infos: Sequence[ClientInfo], rng: np.random.Generator, t: int, size: int = 0
    ) -> set[int]:
        """Return the selected clients of round t; none if no client has all tags.

        ``size``: their number; 0: as [select] and the run's settings say.

        Raises ``ValueError`` if a plug-in selects no client, a client twice or another one.
        """
        candidates = [self._candidate(info, t) for info in infos if self.allows(info)]
        if not candidates:
            return set()
        most = size or len(candidates)
        size = min(size or self.size or len(infos), len(candidates))
        chosen = list(self.rule(candidates, size, rng))
        allowed = {candidate.k for candidate in candidates}
        if not 0 < len(chosen) <= most or len({*chosen}) < len(chosen) or not {*chosen} <= allowed:
            raise ValueError(
                f"select.by = {self.by!r} selected {chosen} of the clients {sorted(allowed)}"
                f"{at(self.rule)}"
            )
        return {int(k) for k in chosen}

    def _candidate(self, info: ClientInfo, t: int) -> Candidate:
        """Return a client as the rule sees it in round t."""
        k = info.k
        metrics, durations = self.metrics.get(k, {}), self.durations.get(k, {})
        seconds = 0.0 if self.rule in TIMELESS else self.predicted(k)
        tags = tuple(info.tags)
        return Candidate(k, info.n, info.model, tags, metrics, durations, seconds, t)
