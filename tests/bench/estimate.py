"""What a federation of 10,000 clients needs, from the measured figures of ``scale.json``.

Arithmetic, not a measurement: bytes and idle costs of a client, multiplied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

CLIENTS, CHOSEN = 10_000, 1_000  #: registered, and taking part in a round
WIRE = 125 * 10**6  #: bytes a second of a 1 Gbit/s line
MB, GB = 10**6, 10**9


@final
@dataclass(frozen=True)
class Idle:
    """What idle SuperNodes cost the SuperLink."""

    memory: float  #: bytes for each
    processor: float  #: seconds of processor time a second for each


def idle(crowd: Mapping[str, Any]) -> Idle:
    """Slopes between the smallest and the largest number of SuperNodes measured.

    Of RSS: the SuperLink's part of the pages that it shares falls with every SuperNode beside it.
    """
    few, many = min(crowd, key=int), max(crowd, key=int)
    nodes = int(many) - int(few)
    if nodes == 0:
        raise ValueError(f"one number of SuperNodes ({many}) gives no slope: measure two at least")

    def slope(of_many: float, of_few: float) -> float:
        return max(of_many - of_few, 0.0) / nodes

    low, high = crowd[few], crowd[many]
    return Idle(
        slope(high["idle"]["superlink"]["rss"], low["idle"]["superlink"]["rss"]),
        slope(high["idle cpu"]["superlink"], low["idle cpu"]["superlink"]),
    )


def round_of(down: float, up: float) -> dict[str, float]:
    """A round's load on the SuperLink: bytes, seconds of the line, bytes held at most.

    The line carries down and up to and from ``CHOSEN`` clients, both directions at once. What goes
    to everybody is held once, replies until the ServerApp has pulled them.
    """
    return {
        "bytes": CHOSEN * (down + up),
        "line": CHOSEN * max(down, up) / WIRE,
        "held": down + CHOSEN * up,
    }
