"""How far out the numbers are that clients sent, and whose are beyond all reason.

Finite numbers can be wrong beyond repair: one weight of 3·10³⁸ makes an average in which nobody can
train. Two measures see that, whatever a method computes:

- *change*: ‖w_k − w‖ of the parameters that a client was sent, divided by its local steps, over the
  median of that among the clients of one architecture, from three of them on. BatchNorm's
  statistics are left out: they are no steps.
- *largest*: the largest absolute value among all floating-point numbers of a reply: statistics,
  logits, prototypes, features and generators too, and models of which there is no change to see.

``sanity`` bounds the change, and 10⁴ times ``sanity`` the largest. Honest clients stay far below:
docs/security.md has what was measured.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from common.exchange.protocol import Reply, Request
from common.exchange.records import tensors
from common.journal import Entry, Magnitude
from common.settings.config import MethodOptions
from common.training.tree import pieces
from server_app.method import Client, Method
from server_app.stopped import DivergedRound

FROM = 3  #: clients of one architecture, for whom a median means something
LARGEST = 1e4  #: of one unit of ``sanity``
HONEST_CHANGE, HONEST_LARGEST = 72.0, 7.2e5
"""What no honest client of a recorded run exceeds."""

DIVERGED = ("training diverged", "not finite")
"""What clients say, or what is said of their replies, where a model is beyond training."""

Found = dict[int, Magnitude]


def measure(
    method: Method[MethodOptions, Reply],
    sent: Mapping[int, Request],
    good: Sequence[tuple[Client, Reply]],
) -> Found:
    """Both measures of every reply; ``sent``: what the clients were sent, by client, if known."""
    changes: dict[str, dict[int, float]] = {}
    largest = {client.k: _largest(reply) for client, reply in good}
    for client, reply in good:
        request, shapes, squares = sent.get(client.k), list[tuple[str, torch.Size]](), 0.0
        for name, step in method.change(request, reply) if request is not None else ():
            shapes.append((name, step.shape))
            squares += float(step.double().square().sum())
        if shapes:
            change = squares**0.5 / method.task.steps(client.n)
            changes.setdefault(str(shapes), {})[client.k] = change
    ratios: dict[int, dict[str, Any]] = {}
    for group in changes.values():
        middle = statistics.median(group.values())
        if len(group) >= FROM and middle > 0:
            among = len(group)
            ratios |= {k: {"change": c / middle, "among": among} for k, c in group.items()}
    return {k: Magnitude(largest=size, **ratios.get(k, {})) for k, size in largest.items()}


def beyond(found: Found, sanity: float) -> dict[int, str]:
    """Why a reply is not used, by client; nothing for ``sanity`` = 0."""
    why: dict[int, str] = {}
    for k, told in found.items() if sanity else ():
        if told.change is not None and told.change > sanity:
            why[k] = (
                f"w: its change per step is {told.change:.2g} times the median of {told.among} "
                f"clients, sanity = {sanity:g}"
            )
        elif told.largest > LARGEST * sanity:
            most = f"sanity = {sanity:g} allows {LARGEST * sanity:.2g}"
            why[k] = f"it has the number {told.largest:.2g}, {most}"
    return why


def suspects(found: Found) -> list[int]:
    """Those whose numbers are further out than those of any honest client, ascending."""
    return sorted(
        k
        for k, told in found.items()
        if (told.change or 0.0) > HONEST_CHANGE or told.largest > HONEST_LARGEST
    )


def check_before(entry: Entry, before: Entry) -> None:
    """Raise ``DivergedRound``, of the round before, if most clients diverge from what it left."""
    lost = [f for f in entry.failures if any(word in f.reason for word in DIVERGED)]
    if 2 * len(lost) > len(entry.selected) and (who := suspects(before.magnitudes)):
        line = f"{len(lost)} of {len(entry.selected)} clients diverge; client {lost[0].k}"
        said = f"round {entry.round}: {line}: {lost[0].reason}"
        raise DivergedRound(said, before.round, who)


def _largest(reply: Reply) -> float:
    numbers = (x for _, x in tensors(reply) if x.numel() and x.is_floating_point())
    return max((float(piece.abs().max()) for x in numbers for piece in pieces(x)), default=0.0)
