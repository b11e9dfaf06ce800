"""A reply of which a part never comes, and what Flower's grid then does."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.flower import rpc
from tests.support.waiting import PATIENCE


def pulled(
    parts: dict[str, int], in_vain: Callable[[], None] = lambda: None, **named: int
) -> dict[str, bytes]:
    """``parts``: by name how often each is asked for in vain before it is there."""
    names, left = list(parts), dict(parts)

    def part(name: str) -> bytes:
        left[name] -= 1
        if left[name] >= 0:
            in_vain()
            raise ObjectUnavailableError(name)
        return name.encode()

    found: dict[str, bytes] = grpc_grid.pull_objects(
        names, part, initial_backoff=0.01, backoff_cap=0.02, **named
    )
    return found


WHOLE = {"a": b"a", "b": b"b"}
NEVER = 10**6


def test_a_reply_that_is_whole_in_time_is_as_flower_pulls_it() -> None:
    with rpc.whole_by(time.monotonic() + PATIENCE):
        assert pulled({"a": 0, "b": 5}) == WHOLE


def test_what_has_not_come_by_the_deadline_is_given_up() -> None:
    begin = time.monotonic()
    with (
        rpc.whole_by(begin + 0.2),
        pytest.raises(ObjectUnavailableError, match="the reply stopped halfway, without b"),
    ):
        pulled({"a": 0, "b": NEVER})
    assert 0.2 <= time.monotonic() - begin < PATIENCE


def test_what_is_there_after_the_deadline_is_taken_all_the_same() -> None:
    with rpc.whole_by(time.monotonic() - 1.0):
        assert pulled({"a": 0, "b": 0}) == WHOLE
        with pytest.raises(ObjectUnavailableError):
            pulled({"a": 0, "b": 1})


def test_a_reply_may_take_long_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def wait() -> None:
        clock.now += rpc.STALLED / 2

    with rpc.whole_by(1e9):
        assert pulled({"a": 2, "b": 2}, wait, max_concurrent_pulls=1) == WHOLE
        assert clock.now == 2 * rpc.STALLED
        with pytest.raises(ObjectUnavailableError):
            pulled({"a": 0, "b": NEVER}, wait)


def test_flower_is_left_as_it_was() -> None:
    before = grpc_grid.pull_objects
    with pytest.raises(ZeroDivisionError), rpc.whole_by(0.0):
        assert grpc_grid.pull_objects is not before
        raise ZeroDivisionError
    assert grpc_grid.pull_objects is before
