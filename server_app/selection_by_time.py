"""Rules of selection that read the times of a virtual clock: ``select.by = "oort"`` and ``"tier"``.

A rule depends on the candidates alone, whose metrics and times come from the journal, so that a
resumed run selects the same clients.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from server_app.candidate import LOSS, Candidate, uniform, weighted

EXPLORATION, DECAY, LEAST = 0.9, 0.98, 0.3  #: share of new clients: first, a round's factor, least
WINDOW = 5  #: new clients that may be drawn, by the number that is drawn
CUT_OFF = 0.05  #: share of the cut-off's score that a client needs
CLIP = 0.9  #: quantile at which utilities are clipped
PACE, FIRST, CHANGE = 20, 30, 5  #: rounds between changes of the percentage; its start and change
TIERS = 5


def oort(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with a high loss and short jobs, and some that were never selected (Oort).

    Lai et al., OSDI 2021, by the code of FedScale. A share max(0.9 · 0.98^t, 0.3) of the clients is
    drawn among those without a job so far, in proportion to n · penalty, from the five times as
    many with the largest. The others are drawn in proportion to their score (``scores``) among
    those with at least 5 % of the cut-off, the score of the best client that is not needed.

    Differences from that code: the utility of a reply is n times its mean loss, not n times the
    root of the mean squared loss. Round 1 explores, too. Only clients with a job count in the
    range of utilities. Each group fills up the other's free places; there a round without untried
    clients has fewer clients, or fails. Scores below the cut-off never fill up the candidates.
    """
    t, utility = candidates[0].t, utilities(candidates)
    penalty = penalties(candidates, percentage(utility, t))
    rated = scores(utility, penalty, t)
    new = {c.k: c.n * penalty[c.k] for c in candidates if c.k not in rated}
    share = max(EXPLORATION * DECAY**t, LEAST)
    wanted = int(size * share) if size > 1 else int(rng.random() < share)
    explored = max(min(wanted, len(new)), size - len(rated))
    best = sorted(rated, key=lambda k: (-rated[k], k))
    if len(best) > (exploited := size - explored):
        best = [k for k in best if rated[k] >= CUT_OFF * rated[best[exploited]]]
    largest = sorted(new, key=lambda k: (-new[k], k))[: WINDOW * explored]
    of = {candidate.k: candidate for candidate in candidates}
    return [
        *weighted([of[k] for k in best], [rated[k] for k in best], exploited, rng),
        *weighted([of[k] for k in largest], [new[k] for k in largest], explored, rng),
    ]


def utilities(candidates: Sequence[Candidate]) -> dict[int, dict[int, float]]:
    """Return u = n · loss of each candidate's jobs by round, for candidates with a job.

    A late reply, or one without a loss, has the mean of its round's other replies, or n without
    any, as if their loss was 1.
    """
    known = {
        c.k: {r: c.n * max(m[LOSS], 0.0) for r, m in c.metrics.items() if LOSS in m}
        for c in candidates
    }
    by_round: dict[int, list[float]] = {}
    for own in known.values():
        for r, utility in own.items():
            by_round.setdefault(r, []).append(utility)
    means = {r: fmean(values) for r, values in by_round.items()}
    jobs = {c.k: (c, sorted({*c.metrics, *c.durations})) for c in candidates}
    return {
        k: {r: known[k].get(r, means.get(r, float(c.n))) for r in rounds}
        for k, (c, rounds) in jobs.items()
        if rounds
    }


def percentage(utility: Mapping[int, Mapping[int, float]], t: int) -> int:
    """Return the percentage of clients whose jobs are not too long in round t (Oort's pacer).

    It starts at 30. After every 20 rounds, compare the utility of the last 20 rounds with that of
    the 20 before: add 5 if it changed by at most 10 %, subtract 5 if by at least 500 %. A round's
    utility is the mean of its clients that had a job before.
    """
    by_round: dict[int, list[float]] = {}
    for own in utility.values():
        for r in sorted(own)[1:]:
            by_round.setdefault(r, []).append(own[r])
    means, value = {r: fmean(values) for r, values in by_round.items()}, FIRST
    for end in range(2 * PACE, t, PACE):
        before, last = (
            sum(means.get(r, 0.0) for r in range(first + 1, first + 1 + PACE))
            for first in (end - 2 * PACE, end - PACE)
        )
        if abs(last - before) <= 0.1 * before:
            value = min(value + CHANGE, 100)
        elif abs(last - before) >= 5 * before:
            value = max(value - CHANGE, CHANGE)
    return value


def penalties(candidates: Sequence[Candidate], percent: int) -> dict[int, float]:
    """Return (T/d)² of each client whose job takes d seconds, if d is more than T, else 1.

    T is the quantile ``percent`` of the durations; with 100 there are no penalties.
    """
    durations = {candidate.k: candidate.duration for candidate in candidates}
    limit = math.inf if percent >= 100 else _quantile([*durations.values()], percent / 100)
    return {k: (limit / d) ** 2 if d > limit else 1.0 for k, d in durations.items()}


def scores(
    utility: Mapping[int, Mapping[int, float]], penalty: Mapping[int, float], t: int
) -> dict[int, float]:
    """Return Oort's score of each client with a utility, at least 0.

    ((min(u, q) − min u) / (max u − min u) + √(0.1 · ln t / t_k)) · penalty, where u is the utility
    of its latest job, in round t_k, and q the quantile 0.9 of all u. min u counts 0.1 % less.
    """
    latest = {k: max(own) for k, own in utility.items()}
    u = {k: own[latest[k]] for k, own in utility.items()}
    if not u:
        return {}
    clip, low = _quantile([*u.values()], CLIP), 0.999 * min(u.values())
    span = max(max(u.values()) - low, 1e-4)
    return {
        k: ((min(u[k], clip) - low) / span + math.sqrt(0.1 * math.log(t) / latest[k])) * penalty[k]
        for k in u
    }


def _quantile(values: Sequence[float], q: float) -> float:
    """Return the value at position ⌊q · number⌋ of the sorted values, or the last one."""
    return sorted(values)[min(int(len(values) * q), len(values) - 1)]


def by_tier(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with similar times: one of five tiers by predicted time, then clients in it.

    After Chai et al., "TiFL", HPDC 2020, with equal probabilities of tiers: without its credits and
    without its probabilities by the tiers' accuracies. There are fewer tiers if a fifth of the
    clients is less than a round needs.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate.seconds, candidate.k))
    tiers = max(min(TIERS, len(ordered) // size), 1)
    tier = int(rng.integers(tiers))
    first, end = (len(ordered) * i // tiers for i in (tier, tier + 1))
    return uniform(ordered[first:end], size, rng)
