"""What the server gives back to clients, and what the journal hears of their gain."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from common import journal, quantise
from common.incentive import Gain, Reward
from common.journal import Entry, Incentive
from common.protocol import Up
from server_app.method import Client


def whole(theta: Tensor, dtype: str) -> Reward:
    """All of θ [N, C], probabilities, in the wire's ``dtype``."""
    return Reward(y=None, theta=quantise.encode(theta.clamp(0, 1), dtype))


def note(gains: Sequence[tuple[Client, Up]], entry: Entry) -> None:
    """Each client's accuracy before and after, and the means, as ``entry.incentive``."""
    found = {
        client.k: journal.Gain(before=gain.before, after=gain.after)
        for client, gain in gains
        if isinstance(gain, Gain)
    }
    if found:
        entry.incentive = Incentive(
            before=sum(gain.before for gain in found.values()) / len(found),
            after=sum(gain.after for gain in found.values()) / len(found),
            clients=found,
        )
