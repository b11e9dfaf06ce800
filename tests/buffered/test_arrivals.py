"""Asynchronous rounds without a clock: order of real arrivals, and its replay by the journal."""

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from common.parse import parse
from deploy.flower.certificates import make
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.asynchronous import Failing, Killed, Mortal, Worse, config, steps
from tests.support.coming import Coming, changes, played_by
from tests.support.keys import Keyed
from tests.support.scaled import LIAR, SIX
from tests.support.tiny import TinyRun, flat, listed, play

REAL: dict[str, Any] = {"mode": "buffered", "profiles": ""}


class Shuffled(Loopback):  # type: ignore[misc]
    """Loopback that delivers one reply of training at a time, any of those that are there."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.held, self.rng = list[Message](), random.Random(1)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names, now = [*message_ids], list[Message]()
        for reply in super().pull_messages(names):
            (self.held if reply.metadata.message_type == "train" else now).append(reply)
        asked = [m for m in self.held if m.metadata.reply_to_message_id in names]
        if asked:
            now.append(self.rng.choice(asked))
            self.held.remove(now[-1])
        return now


def real(out: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a tiny run without a clock."""
    settings = config(out, **{**REAL, **more})
    return {key: value for key, value in settings.items() if not key.startswith("profile.")}


def replayed(run: TinyRun, **more: Any) -> TinyRun:
    """Replay a run by its journal, with the settings ``more`` of it, and compare the two."""
    out = run.folder.with_name(f"{run.folder.name}-again")
    again = play(real(out, **more, membership=str(run.folder / "journal.jsonl")))
    for mine, other in zip(run.journal, again.journal, strict=True):
        assert mine.get("accuracy") == other.get("accuracy")
        assert mine.get("replied") == other.get("replied")
    assert again.weights == run.weights
    assert [s["arrived"] for s in steps(again)] == [s["arrived"] for s in steps(run)]
    return again


def test_arrival_decides_and_the_journal_replays_it(tmp_path: Path) -> None:
    more = {"method": "fedper", "rounds": 6, "score__clients_every": 2}
    run = play(real(tmp_path / "run", **more), Shuffled)
    assert any(age for step in steps(run) for age in step["staleness"])
    again = replayed(run, **more)
    assert [step["events"] for step in steps(again)] == [step["events"] for step in steps(run)]
    other = play(real(tmp_path / "other", **more))
    assert [s["arrived"] for s in steps(other)] != [s["arrived"] for s in steps(run)]
    assert other.weights != run.weights
    assert replayed(again, **more).weights == run.weights, "a replay has all events too"


def test_times_grow_and_no_client_works_twice_at_once(tmp_path: Path) -> None:
    run = play(real(tmp_path, rounds=6), Shuffled)
    times = [time for step in steps(run) for time in step["times"]]
    assert times == sorted(times) and times[0] > 0
    busy: set[int] = set()
    for kind, k, _ in (event for step in steps(run) for event in step["events"]):
        assert (k in busy) is (kind != "sent")
        (busy.add if kind == "sent" else busy.discard)(k)


@pytest.mark.parametrize("more", [{}, {"buffer__max_staleness": 1}, {"buffer__mixing": 0.6}])
def test_lost_and_refused_updates_are_replayed(more: dict[str, Any], tmp_path: Path) -> None:
    class Both(Failing, Shuffled):
        """The replies of client 1 are empty."""

    more = {**more, "rounds": 8, "buffer__size": 1}
    run = play(real(tmp_path / "run", **more), Both)
    events = [event for step in steps(run) for event in step["events"]]
    assert {k for kind, k, _ in events if kind == "lost"} == {1}
    again = replayed(run, **more)
    reasons = {f["reason"] for e in again.journal for f in e["failures"] if f["k"] == 1}
    assert reasons <= {"no reply, by membership", "not needed: the run has ended"}
    stale = [f["kind"] == "stale" for r in (run, again) for e in r.journal for f in e["failures"]]
    assert any(stale) is ("buffer__max_staleness" in more)


@pytest.mark.parametrize("last", [1, 4, 6, 8])
def test_a_run_that_is_killed_goes_on_and_is_replayed_whole(last: int, tmp_path: Path) -> None:
    more = {"method": "scaffold", "rounds": 6}
    Mortal.last = last
    with pytest.raises(Killed):
        play(real(tmp_path / "run", **more), Mortal)
    run = play(real(tmp_path / "run", **more, resume=True), Shuffled)
    assert len(run.journal) == 7
    times = [time for step in steps(run) for time in step["times"]]
    assert times == sorted(times)
    replayed(run, **more)


def test_clients_that_leave_and_join_are_replayed(tmp_path: Path) -> None:
    elastic = {"min_clients": 2, "leave_after": 1, "rounds": 8}
    grid = type("Grid", (Coming.of({1: [3, 4], 3: [1]}), Shuffled), {})
    run = played_by(real(tmp_path / "run", **elastic), grid)
    assert {kind for _, _, kind in changes(run)} == {"left", "returned", "joined"}
    again = replayed(run, **elastic)
    assert changes(again) == changes(run)


def test_a_diverged_step_is_undone_and_the_rest_is_replayed(tmp_path: Path) -> None:
    more = {**SIX, "buffer__size": 5, "buffer__concurrency": 6, "rounds": 10, "keep": 10}
    run = play(real(tmp_path / "run", **more), Worse)
    (undone,) = [u for entry in run.journal[1:] for u in entry.get("undone", [])]
    assert undone["suspects"] == [LIAR] and len(run.journal) == 11
    replayed(run, **more)


class Held(Loopback):  # type: ignore[misc]
    """Loopback whose node 4 comes after the first jobs; no update arrives before it has a job."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.trained, self.held = set[int](), list[Message]()

    def get_node_ids(self) -> Iterable[int]:
        here = [*super().get_node_ids()]
        return here if self.trained else here[:3]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = [*messages]
        about = [message.metadata for message in sent]
        self.trained |= {a.dst_node_id for a in about if a.message_type == "train"}
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.held += super().pull_messages([*message_ids])
        now, self.held = self.held, []
        if self.trained and 4 not in self.trained:
            self.held = [m for m in now if m.metadata.message_type == "train"]
        return [m for m in now if m.metadata.message_type != "train" or not self.held]


def test_who_comes_while_the_server_waits_gets_a_free_place_at_once(tmp_path: Path) -> None:
    sizes = {"buffer__size": 2, "buffer__concurrency": 4, "min_clients": 2, "rounds": 3}
    run = play(real(tmp_path, **sizes), Held)
    assert changes(run) == [(1, 3, "joined")]
    assert {k for k, _ in steps(run)[0]["sent"]} == {0, 1, 2, 3}


def test_a_sealed_run_goes_on_while_a_newcomer_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The census of the newcomer does not take the keys of the jobs in flight."""

    class Sealed(Keyed, Held):
        """Held, with keys."""

    keys = make(tmp_path / "certs", [], 4)
    monkeypatch.setenv("FEDMOSAIC_TRUST", str(keys.folder))
    sizes = {"buffer__size": 2, "buffer__concurrency": 4, "min_clients": 2, "rounds": 3}
    settings = real(tmp_path / "run", **sizes)
    run = play(settings, Sealed(settings, keys))
    assert changes(run) == [(1, 3, "joined")] and not any(e["failures"] for e in run.journal[:3])
    assert {k for k, _ in steps(run)[0]["sent"]} == {0, 1, 2, 3}


# Mistakes.


def test_a_journal_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    sync = play(flat(tmp_path / "sync", fleet="mlp@0.25"))
    line = 'it has no jobs of asynchronous rounds (mode = "buffered")'
    with pytest.raises(Stopped, match=re.escape(line)):
        play(real(tmp_path / "a", membership=str(sync.folder / "journal.jsonl")))
    short = play(real(tmp_path / "short", rounds=3))
    line = "round 4: membership has no further event, and 0 of buffer.size = 2 updates arrived"
    with pytest.raises(Stopped, match=line):
        play(real(tmp_path / "b", membership=str(short.folder / "journal.jsonl")))
    line = "round 1: membership has more updates than buffer.size = 1; it is the journal of a run"
    with pytest.raises(Stopped, match=line):
        more = {"membership": str(short.folder / "journal.jsonl"), "buffer__size": 1}
        play(real(tmp_path / "d", **more))
    events = listed(tmp_path, '[[event]]\nround = 2\nclient = 1\nkind = "left"\n')
    left = play(real(tmp_path / "c", membership=events))
    assert 1 not in {k for step in steps(left)[1:] for k, _ in step["sent"]}


def test_privacy_needs_the_clock(tmp_path: Path) -> None:
    noise = {"privacy__mode": "central", "privacy__sampling": "public", "train__steps": 2}
    line = (
        'privacy.mode = "central" is not allowed with mode = "buffered" without profiles: the '
        "order of arrival would tell of the clients' samples"
    )
    with pytest.raises(ValueError, match=re.escape(line)):
        parse(real(tmp_path, **noise, privacy__noise_multiplier=0.5))
