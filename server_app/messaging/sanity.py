"""Measure how unusual the numbers of each reply are, and reject impossible ones.

Finite numbers can still ruin a model: with one weight of 3·10³⁸ in the average no client can train.
Two measures detect that for every method:

- *change*: ‖w_k − w‖ of the parameters that a client received, divided by its local steps, relative
  to the median of this value among at least three clients of one architecture. BatchNorm's
  statistics are left out because training steps do not change them.
- *largest*: the largest absolute value among all floating-point numbers of a reply. It covers
  statistics, logits, prototypes, features, generators and models without a measurable change.

``sanity`` is the limit of the change, and 10⁴ times ``sanity`` that of the largest. Honest clients
stay far below: docs/checks.md has the measurements.

Under [privacy] only *largest* is measured, which does not depend on other replies.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from common import progress
from common.exchange.protocol import Reply, Request
from common.exchange.records import tensors
from common.exchange.tree import pieces
from common.journal import Entry, Failure, Magnitude
from common.settings.config import MethodOptions
from server_app.method import Client, Method
from server_app.stopped import DivergedRound

FEWEST = 3  #: the fewest clients of one architecture for a meaningful median
LARGEST = 1e4  #: the limit of the largest value for ``sanity`` = 1
HONEST_CHANGE, HONEST_LARGEST = 72.0, 7.2e5
"""Upper bounds of both measures for the honest clients of all recorded runs."""

FEWEST_TO_COMPARE = 5  #: the fewest changes of one architecture for a meaningful deviation
DEVIATIONS, TIMES = 6.0, 3.0
"""A change stands out above median + 6 · 1.4826 · MAD and above three times the median."""

Magnitudes = dict[int, Magnitude]
"""Both measures by client."""


def measure(
    method: Method[MethodOptions, Reply],
    sent: Mapping[int, Request],
    good: Sequence[tuple[Client, Reply]],
) -> Magnitudes:
    """Return both measures of every reply; ``sent``: the requests by client, where known."""
    changes: dict[str, dict[int, float]] = {}
    largest = {client.k: _largest(reply) for client, reply in good}
    for client, reply in progress.steps(good, "sanity check"):
        request, shapes, squares = sent.get(client.k), list[tuple[str, torch.Size]](), 0.0
        for name, step in method.change(request, reply) if request is not None else ():
            shapes.append((name, step.shape))
            squares += float(step.double().square().sum())
        if request is not None and shapes:
            change = squares**0.5 / method.task.steps(client.n, request.steps)
            changes.setdefault(str(shapes), {})[client.k] = change
    ratios: dict[int, dict[str, Any]] = {}
    for group in changes.values():
        middle = statistics.median(group.values())
        if len(group) >= FEWEST and middle > 0:
            among = len(group)
            ratios |= {k: {"change": c / middle, "among": among} for k, c in group.items()}
    return {k: Magnitude(largest=size, **ratios.get(k, {})) for k, size in largest.items()}


def refused(
    entry: Entry,
    method: Method[MethodOptions, Reply],
    good: Sequence[tuple[Client, Reply]],
) -> list[Failure]:
    """Return a failure for each reply that exceeds the limits, and write the measures to the entry.

    Under [privacy] no reply is compared with another, and sizes are not kept: a client would change
    by more than the noise is made for.
    """
    private = method.config.privacy.on
    magnitudes = measure(method, {} if private else method.sent, good)
    entry.magnitudes = {} if private else {**entry.magnitudes, **magnitudes}
    return [
        Failure(k=k, round=entry.round, reason=f"reply refused: {why}", kind="refused")
        for k, why in beyond(magnitudes, method.config.run.sanity).items()
    ]


def beyond(magnitudes: Magnitudes, sanity: float) -> dict[int, str]:
    """Return by client why its reply exceeds the limits; nothing for ``sanity`` = 0."""
    why: dict[int, str] = {}
    for k, size in magnitudes.items() if sanity else ():
        if size.change is not None and size.change > sanity:
            why[k] = (
                f"w: its change per step is {size.change:.2g} times the median of {size.among} "
                f"clients, sanity = {sanity:g}"
            )
        elif size.largest > LARGEST * sanity:
            most = f"sanity = {sanity:g} allows {LARGEST * sanity:.2g}"
            why[k] = f"it has the number {size.largest:.2g}, {most}"
    return why


def suspects(entry: Entry, architectures: Mapping[int, str]) -> dict[int, str]:
    """Return the clients whose accepted reply stands out in a round, each with its unusual measure.

    ``architectures``: the architecture of each client. A client stands out if its change is above
    ``_limit`` for its architecture, or its largest number above those of all honest clients. At
    most a minority stands out, ⌊(n − 1)/2⌋ of n clients: those with the most unusual measures.
    """
    accepted = {k: size for k, size in entry.magnitudes.items() if k in entry.replied}
    changes: dict[str, list[float]] = {}
    for k, size in accepted.items():
        if size.change is not None:
            changes.setdefault(architectures[k], []).append(size.change)
    limits = {architecture: _limit(group) for architecture, group in changes.items()}
    excess: dict[int, tuple[float, str]] = {}
    for k, size in accepted.items():
        measures = [(size.largest / HONEST_LARGEST, f"largest number {size.largest:.2g}")]
        if size.change is not None:
            ratio = size.change / limits[architectures[k]]
            measures.append((ratio, f"{size.change:.2g} times the median change"))
        if (furthest := max(measures))[0] > 1:
            excess[k] = furthest
    most = max(len(accepted) - 1, 0) // 2
    ranked = sorted(excess, key=lambda k: -excess[k][0])[:most]
    return {k: excess[k][1] for k in sorted(ranked)}


def _limit(changes: Sequence[float]) -> float:
    """Return the change above which a client stands out among those of its architecture."""
    if len(changes) < FEWEST_TO_COMPARE:
        return HONEST_CHANGE
    median = statistics.median(changes)
    mad = statistics.median(abs(change - median) for change in changes)
    limit = max(median + DEVIATIONS * 1.4826 * mad, TIMES * median)
    return min(HONEST_CHANGE, limit) if limit else HONEST_CHANGE


def check_before(
    entry: Entry, before: Entry, architectures: Mapping[int, str], clients: int
) -> None:
    """Raise ``DivergedRound`` for the round ``before`` if most ``clients`` of ``entry`` diverge.

    The round ``before`` must have a client that stands out.
    """
    lost = [failure for failure in entry.failures if failure.kind == "diverged"]
    if 2 * len(lost) > clients and suspects(before, architectures):
        line = f"{len(lost)} of {clients} clients diverge; client {lost[0].k}"
        reason = f"round {entry.round}: {line}: {lost[0].reason}"
        raise DivergedRound(reason, before.round)


def _largest(reply: Reply) -> float:
    numbers = (x for _, x in tensors(reply) if x.numel() and x.is_floating_point())
    return max((float(piece.abs().max()) for x in numbers for piece in pieces(x)), default=0.0)
