"""Under [privacy] one client changes the sum of a step by at most C, and no time, whatever it does.

Neighbours differ in one client's updates or in its number of samples n_k, which would order the
arrivals if the times depended on it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor

from common.exchange.protocol import ModelRequest
from common.journal import Entry
from server_app.aggregation import privacy
from server_app.buffered.by_clock import ByClock
from server_app.method import Client
from tests.support.asynchronous import PROFILES
from tests.support.neighbours import C, Federation, Replying, Update, case

SETTINGS: dict[str, Any] = {**PROFILES, "privacy__mode": "central", "privacy__sampling": "public"}
SETTINGS |= {"train__steps": 2, "buffer__size": 2, "buffer__concurrency": 3, "clock__jitter": 0.3}
STEPS, CLIENTS = 3, 5


class Jobs(Replying):
    """Grid whose messages may be of several versions."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        push = super().push_messages
        return [name for message in messages for name in push([message])]


class Steps(Federation):
    """Server of a private run with asynchronous rounds, without its clients' processes."""

    def steps(self, updates: list[list[Update]], sizes: list[int]) -> tuple[list[Tensor], Any]:
        """Return the sums before the noise of all steps, and the events of these steps.

        ``updates``: of each client, by its jobs; ``sizes``: n_k.
        """
        strategy, found, events = self.strategy, list[Tensor](), list[Any]()
        # the same server in its initial state: to build it anew takes ten times as long
        strategy.buffered, strategy.entry = ByClock(strategy, lambda t: None), Entry(round=0)
        strategy.clock.now, strategy.clock.predictor.newest = 0, {}
        members = strategy.membership.members
        for k, client in members.items():
            info = client.info.model_copy(update={"n": sizes[k]})
            members[k] = Client(info, client.node)
        strategy.membership.known = members
        strategy.method.clients = strategy.clients
        strategy.method.w = dict(self.start)
        done = dict.fromkeys(members, 0)

        def reply(k: int, request: ModelRequest) -> Any:
            update = updates[k][done[k] % len(updates[k])]
            done[k] += 1
            return self.reply(k, request, update)

        def noised(update: Tensor, *_: Any) -> Tensor:
            found.append(update.clone())
            return torch.zeros_like(update)

        def moved(start: Any, names: list[str], step: Tensor) -> Any:
            return dict(start)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(privacy, "noised", noised)
            patch.setattr(privacy, "moved", moved)
            strategy.grid = Jobs(reply)
            for t in range(1, STEPS + 1):
                strategy.before, strategy.entry = strategy.entry, Entry(round=t)
                strategy._collect(t, strategy.buffered)
                events.append(strategy.entry.buffer)
                strategy.clock.close(strategy.entry)
        return found, events


@pytest.mark.parametrize(
    "cases", [pytest.param(10), pytest.param(1000, marks=pytest.mark.full)], ids="{} cases".format
)
def test_one_client_moves_a_sum_by_at_most_clip_and_no_arrival(cases: int, tmp_path: Path) -> None:
    federation = Steps(tmp_path, CLIENTS, **SETTINGS)
    rng, ratio, stale = np.random.default_rng(11), 0.0, 0
    for i in range(cases):
        jobs = [case(rng, federation.size, CLIENTS) for _ in range(STEPS)]
        updates = [[job[k] for job in jobs] for k in range(CLIENTS)]
        sizes = [int(n) for n in rng.integers(1, 1000, CLIENTS)]
        k = int(rng.integers(CLIENTS))
        other, fewer = [*updates], [*sizes]
        if i % 2:
            other[k] = ["lost"]
        fewer[k] = int(rng.integers(1, 1000))
        (sums, events), (others, again) = (
            federation.steps(updates, sizes),
            federation.steps(other, fewer),
        )
        assert events == again
        stale += sum(age > 0 for step in events for age in step.staleness)
        apart = [float((a - b).norm()) for a, b in zip(sums, others, strict=True)]
        ratio = max(ratio, *(distance / C for distance in apart))
        if not i % 2:
            assert max(apart) == 0, "the number of samples changes nothing"
    least = 0.9 if cases > 100 else 0.5  # most updates are stale, and count less
    assert least < ratio <= 1 + 1e-6 and stale
