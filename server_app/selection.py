"""Selection of the clients of a round: by their tags and by a rule (``select.by``).

A rule is a function of the candidates, the number of clients to select and a random generator. It
returns the numbers k of the selected clients. The user's own is a plug-in of the kind
``selections``:

    def newest(candidates, size, rng):
        last = {c.k: max(c.metrics, default=0) for c in candidates}
        return sorted(last, key=last.get, reverse=True)[:size]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast, final

import numpy as np

from common.errors import at
from common.exchange.protocol import ClientInfo
from common.journal import Entry
from common.settings import plugins
from common.settings.config import Config, listed

LOSS = "loss"  #: metric of a reply with the mean training loss


@final
@dataclass(frozen=True)
class Candidate:
    """Client k with n training samples. ``metrics``: those of its replies so far, by round."""

    k: int
    n: int
    model: str
    tags: Sequence[str]
    metrics: Mapping[int, Mapping[str, float]]


Rule = Callable[[Sequence[Candidate], int, np.random.Generator], Sequence[int]]


def uniform(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with equal probability."""
    return [candidates[i].k for i in rng.choice(len(candidates), size=size, replace=False)]


def by_samples(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with a probability that grows with their training samples."""
    return _weighted(candidates, [candidate.n for candidate in candidates], size, rng)


def by_loss(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with a probability that grows with the training loss of their last reply.

    A client without one has the mean loss of the others.
    """
    last = [_last_loss(candidate) for candidate in candidates]
    known = [loss for loss in last if loss is not None]
    mean = fmean(known) if known else 1.0
    weights = [mean if loss is None else loss for loss in last]
    return _weighted(candidates, weights, size, rng)


RULES: dict[str, Rule] = {"uniform": uniform, "samples": by_samples, "loss": by_loss}
"""Rules by name."""


def _weighted(
    candidates: Sequence[Candidate],
    weights: Sequence[float],
    size: int,
    rng: np.random.Generator,
) -> list[int]:
    """Draw without replacement with probabilities in proportion to ``weights``, none of them 0."""
    p = np.maximum(np.asarray(weights, dtype=np.float64), 1e-9)
    chosen = rng.choice(len(candidates), size=size, replace=False, p=p / p.sum())
    return [candidates[i].k for i in chosen]


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


@final
class Selection:
    """The selection of one run, with the metrics of the clients' replies that its rule reads."""

    def __init__(self, config: Config) -> None:
        self.by, self.rule = config.select.by, find(config.select.by)
        self.tags, self.per_round = listed(config.select.tags), config.run.per_round
        self.metrics: dict[int, dict[int, dict[str, float]]] = {}  #: by client and round

    def add(self, entry: Entry) -> None:
        """Add the metrics of a round's replies: all for a plug-in, so that memory grows with it."""
        if self.rule in (uniform, by_samples):
            return
        for k, metrics in entry.client_metrics.items():
            if self.rule is not by_loss:
                self.metrics.setdefault(k, {})[entry.round] = metrics
            elif LOSS in metrics:
                self.metrics[k] = {entry.round: {LOSS: metrics[LOSS]}}

    def check_tags(self, known: set[str]) -> None:
        """Raise ``ValueError`` if no client has one of the tags; ``known``: the clients' tags."""
        if missing := [tag for tag in self.tags if tag not in known]:
            others = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"select.tags: no client has the tag {missing[0]!r}; the clients' tags are {others}"
            )

    def draw(self, infos: Sequence[ClientInfo], rng: np.random.Generator) -> set[int]:
        """Return the selected clients; none if no client has all tags.

        Raises ``ValueError`` if a plug-in selects no client, a client twice or another one.
        """
        candidates = [
            Candidate(info.k, info.n, info.model, tuple(info.tags), self.metrics.get(info.k, {}))
            for info in infos
            if {*self.tags} <= {*info.tags}
        ]
        if not candidates:
            return set()
        chosen = list(
            self.rule(candidates, min(self.per_round or len(infos), len(candidates)), rng)
        )
        allowed = {candidate.k for candidate in candidates}
        if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= allowed:
            raise ValueError(
                f"select.by = {self.by!r} selected {chosen} of the clients {sorted(allowed)}"
                f"{at(self.rule)}"
            )
        return {int(k) for k in chosen}
