"""Asynchronous rounds as whole runs: limits, order, resume, methods, privacy."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from common import methods
from common.parse import parse
from common.settings.facts import AS_SENT
from common.techniques import privacy
from deploy.run.loopback import Loopback
from server_app.global_weights import GlobalModels
from server_app.method import Method
from server_app.stopped import Stopped
from tests.support import battery
from tests.support.asynchronous import (
    EQUAL,
    GROUPS,
    METHOD,
    PROFILES,
    RECALIBRATED,
    SMALL,
    Failing,
    Killed,
    Mortal,
    Worse,
    buffered,
    config,
    same,
    steps,
)
from tests.support.scaled import LIAR, SIX
from tests.support.tiny import flat, listed, play

UNSTEADY = {"clock__jitter": 0.3, "clock__loss": 0.2, "clock__notice": 0.05}
DUE = [name for names in GROUPS.values() for name in names]


class AllFailing(Loopback):  # type: ignore[misc]
    """Loopback on which all replies of training are empty."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(message_ids):
            if reply.metadata.message_type == "train":
                reply.content = RecordDict()
            yield reply


# Limits.


def test_a_buffer_of_all_clients_with_equal_times_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """Also with weights by samples."""
    for weights in ("uniform", "samples"):
        more = {**EQUAL, "average__weights": weights, "data__partition": "label_dirichlet"}
        equal = {**more, "profile__fast__step-overhead": 0.0, "profile__fast__flops": 1e18}
        sizes = {"buffer__size": 4, "buffer__concurrency": 4}
        run = buffered(tmp_path / weights, **equal, **sizes)
        sync = play(flat(tmp_path / f"sync-{weights}", **METHOD, **equal))
        assert run.weights == sync.weights
        accuracies = [[e["accuracy"] for e in r.journal] for r in (run, sync)]
        assert accuracies[0] == accuracies[1]
        assert all(step["staleness"] == [0] * 4 for step in steps(run))


def test_one_job_at_a_time_is_sequential_training(tmp_path: Path) -> None:
    rule = {"select__by": "tests.buffered.rules:in_turn"}
    run = buffered(tmp_path / "run", buffer__size=1, buffer__concurrency=1, **rule)
    sync = play(flat(tmp_path / "sync", **METHOD, **EQUAL, **rule, per_round=1))
    assert run.weights == sync.weights
    assert [step["arrived"] for step in steps(run)] == [[[t % 4, t - 1]] for t in range(1, 6)]


def test_equal_devices_have_the_same_staleness_in_every_cycle(tmp_path: Path) -> None:
    """Their replies arrive together, and each is one step older than the one before it."""
    equal = {**EQUAL, "profile__fast__step-overhead": 1.0, "buffer__size": 1}
    run = buffered(tmp_path, **equal, buffer__concurrency=4, rounds=12)
    assert [step["staleness"] for step in steps(run)] == [[0], [1], [2], [3]] * 3


# Order.


class Backwards(Loopback):  # type: ignore[misc]
    """Loopback that delivers one reply at a time, the last one first."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for name in reversed([*message_ids]):
            if replies := list(super().pull_messages([name])):
                return replies
        return []


def test_neither_workers_nor_the_order_of_replies_change_a_bit(tmp_path: Path) -> None:
    more = {**UNSTEADY, "buffer__max-staleness": 2, "score__clients-every": 2, "method": "fedper"}
    run = buffered(tmp_path / "run", **more)
    lost = {failure["kind"] for entry in run.journal for failure in entry.get("failures", [])}
    assert {"lost", "not needed"} <= lost
    other = play(config(tmp_path / "backwards", **more), Backwards)
    assert same(other, run)
    for workers in (2, 3):
        flat_ = config(tmp_path / str(workers), **more)
        several = play(flat_, Loopback(4, flat_, workers=workers))
        assert same(several, run)


def test_an_update_that_is_too_old_is_a_failure_and_its_cost_counts(tmp_path: Path) -> None:
    run = buffered(tmp_path, buffer__max_staleness=1, buffer__size=1, rounds=8)
    stale = [f for entry in run.journal[1:] for f in entry["failures"] if f["kind"] == "stale"]
    assert stale and all(f["reason"].startswith("stale: ") for f in stale)
    assert all(age <= 1 for step in steps(run) for age in step["staleness"])
    late = [e for e in run.journal[1:] if any(f["kind"] == "stale" for f in e["failures"])]
    assert all(e["flops"]["clients"] > 0 and len(e["clock"]["clients"]) > 1 for e in late)


# Resume.


@pytest.mark.parametrize("method", ["fedper", "scaffold"])
@pytest.mark.parametrize("last", [1, 4, 6, 8, 11])
def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_bits(
    method: str, last: int, tmp_path: Path
) -> None:
    more = {**UNSTEADY, "method": method, "score__clients_every": 1}
    whole = buffered(tmp_path / "whole", **more)
    Mortal.last = last
    with pytest.raises(Killed):
        play(config(tmp_path / "part", **more), Mortal)
    resumed = buffered(tmp_path / "part", **more, resume=True)
    assert same(resumed, whole)


def test_a_run_can_be_extended_and_goes_back(tmp_path: Path) -> None:
    """The jobs that the end of the run dropped are sent again."""
    whole = buffered(tmp_path / "whole", keep=3)
    buffered(tmp_path / "part", rounds=3, keep=3)
    longer = buffered(tmp_path / "part", keep=3, resume=True)
    assert longer.weights == whole.weights
    again = buffered(tmp_path / "part", keep=3, resume=True, from_round=3)
    assert again.weights == whole.weights and steps(again) == steps(whole)
    names = {path.name for path in (tmp_path / "part" / "jobs").iterdir()}
    assert names and max(int(name.split("-")[0]) for name in names) <= 5


# Scores and methods.


def test_busy_clients_do_not_score_and_their_scores_have_an_age(tmp_path: Path) -> None:
    run = buffered(tmp_path, method="fedper", score__clients_every=1, rounds=6)
    fresh: dict[int, tuple[int, float]] = {}
    for entry in run.journal[1:-1]:
        old = {score["k"]: score for score in entry["scores"] if score.get("age")}
        assert len(old) <= entry["buffer"]["in_flight"]
        for k, score in old.items():
            assert fresh[k] == (entry["round"] - score["age"], score["accuracy"])
        new = {s["k"]: (entry["round"], s["accuracy"]) for s in entry["scores"] if "age" not in s}
        fresh |= new
        assert entry["personal"]["clients"] == len(entry["scores"])
    assert any(score.get("age") == 2 for entry in run.journal[1:] for score in entry["scores"])
    assert [score.get("age") for score in run.journal[-1]["scores"]] == [None] * 4


QUICK = ("fedavg", "scaffold", "fedper", "fedorion", "fedkemf", "fedproto")


@pytest.mark.parametrize("method", battery.tiers(DUE, QUICK))
def test_every_method_of_the_groups_has_asynchronous_rounds(method: str, tmp_path: Path) -> None:
    own = {"score__bn": "batch"} if method in RECALIBRATED else {}
    more = {**PROFILES, **SMALL, **own, "rounds": 4, "clock__jitter": 0.3}
    whole = play(battery.config(method, tmp_path / "whole", **more))
    assert any(age for step in steps(whole) for age in step["staleness"])
    Mortal.last = 6
    with pytest.raises(Killed):
        play(battery.config(method, tmp_path / "part", **more), Mortal)
    resumed = play(battery.config(method, tmp_path / "part", **more, resume=True))
    assert same(resumed, whole)
    mixed = {**more, "buffer__size": 1, "buffer__mixing": 0.6}
    settings = battery.config(method, tmp_path / "mixed", **mixed)
    if methods.facts(method).asynchronous in AS_SENT or method == "lwn":
        with pytest.raises(ValueError, match="replies of all ages count the same"):
            parse(settings)
    else:
        play(settings)


def test_the_group_of_every_method_is_declared() -> None:
    page = (Path(__file__).parents[2] / "docs" / "asynchronous.md").read_text()
    rows = re.findall(
        r"^\| `(mean|training|models|tables)` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE
    )
    assert {group: sorted(re.findall("`([^`]+)`", names)) for group, names in rows} == GROUPS
    assert [len(names) for names in GROUPS.values()] == [30, 6, 2, 6]
    assert {methods.facts(name).asynchronous for name in methods.names()} == {
        *(*GROUPS, "turns", "products", "together", "nothing")
    }


# Undone rounds, membership, privacy.


def test_a_diverged_step_is_undone_and_the_suspects_jobs_are_dropped(tmp_path: Path) -> None:
    more = {**SIX, **PROFILES, "rounds": 10, "buffer__size": 5, "buffer__concurrency": 6}
    more |= {"clock__jitter": 0.3, "keep": 10}
    run = play(flat(tmp_path / "run", **more), Worse)
    (undone,) = [u for entry in run.journal[1:] for u in entry.get("undone", [])]
    assert undone["suspects"] == [LIAR]
    first = undone["round"]
    for entry in run.journal[first:]:
        assert LIAR not in {k for kind, k, _ in entry["buffer"]["events"] if kind != "lost"}
    assert run.summary["status"] == "completed"
    assert len(run.journal) == 11


def test_a_run_waits_for_k_clients_and_then_ends(tmp_path: Path) -> None:
    left = [f'[[event]]\nround = 3\nclient = {k}\nkind = "left"\n' for k in (1, 2, 3)]
    events = listed(tmp_path, "".join(left))
    line = (
        "round 3: 0 of buffer.size = 2 updates have arrived, 1 clients take part, and no other "
        "came within buffer.wait = 0.1 s"
    )
    line = line.replace("0 of", "[01] of")
    with pytest.raises(Stopped, match=line):
        buffered(tmp_path / "run", membership=events, buffer__wait=0.1)


def test_a_client_that_leaves_and_returns_works_again(tmp_path: Path) -> None:
    events = '[[event]]\nround = 2\nclient = 1\nkind = "left"\n'
    events += '[[event]]\nround = 4\nclient = 1\nkind = "returned"\n'
    run = buffered(tmp_path / "run", membership=listed(tmp_path, events), rounds=8)
    sent = [{k for k, _ in step["sent"]} for step in steps(run)]
    arrived = [{k for k, _ in step["arrived"]} for step in steps(run)]
    assert 1 in sent[0] and not any(
        1 in s | a for s, a in zip(sent[1:3], arrived[1:3], strict=True)
    )
    assert any(1 in a for a in arrived[3:])


def test_a_journal_replays_the_members_and_no_failure(tmp_path: Path) -> None:
    events = listed(tmp_path, '[[event]]\nround = 2\nclient = 1\nkind = "left"\n')
    run = buffered(tmp_path / "run", membership=events)
    again = buffered(tmp_path / "again", membership=str(run.folder / "journal.jsonl"))
    assert same(again, run)
    failed = play(config(tmp_path / "failed", rounds=6), Failing).folder / "journal.jsonl"
    line = r"round [0-9]: client 1 failed in an asynchronous round, which the virtual clock cannot"
    with pytest.raises(Stopped, match=line):
        buffered(tmp_path / "replayed", membership=str(failed))


def test_a_client_that_fails_rests_until_the_next_step(tmp_path: Path) -> None:
    run = play(config(tmp_path, rounds=6), Failing)
    failed = [{f["k"] for f in entry["failures"]} for entry in run.journal[1:]]
    assert any(1 in ks for ks in failed)
    for entry, ks in zip(run.journal[1:], failed, strict=True):
        sent = [k for kind, k, _ in entry["buffer"]["events"] if kind == "sent"]
        assert 1 not in [k for k, _ in entry["buffer"]["arrived"]]
        assert sent.count(1) <= 1 + (1 in ks)
    with pytest.raises(Stopped, match="no other client can train; client [0-3]: "):
        play(config(tmp_path / "all"), AllFailing)


@pytest.mark.parametrize("broken", [False, True])
def test_under_privacy_a_missing_update_is_zero_and_changes_no_time(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(privacy, "entropy", lambda: bytes(range(32)))
    noise = {"privacy__mode": "central", "privacy__sampling": "public", "train__steps": 2}
    more = {**noise, "privacy__noise_multiplier": 0.5, "clock__jitter": 0.3}
    run = play(config(tmp_path / "run", **more), Failing if broken else Loopback)
    usual = play(config(tmp_path / "usual", **more))
    ends = [[entry["clock"]["end"] for entry in r.journal[1:]] for r in (run, usual)]
    assert ends[0] == ends[1] and (run.weights == usual.weights) is not broken
    assert all("buffer" not in entry or not entry["buffer"] for entry in run.journal)
    epsilons = [entry["privacy"]["epsilon"] for entry in run.journal[1:]]
    assert epsilons == sorted(epsilons) and len(epsilons) == 5


LINES = {
    "flora": "the server computes one update from the factors of a round",
    "rolora": "the clients of a round train the same half of their adapters",
    "fedmd": "all clients of a round work on the same samples, or there is one round",
    "local": "the clients send nothing that is combined",
    battery.EXAMPLE: "its author does not say that updates of different versions can be combined",
}


@pytest.mark.parametrize("method", LINES)
def test_other_methods_are_refused_with_the_reason(method: str, tmp_path: Path) -> None:
    own = {"plugins": str(battery.PLUGIN)} if method == battery.EXAMPLE else {}
    line = f'mode = "buffered" is not allowed with method = "{method}": {LINES[method]}; allowed: '
    with pytest.raises(ValueError, match=re.escape(line) + '"synchronous"'):
        parse(battery.config(method, tmp_path, **PROFILES, **own))


def test_a_half_that_cannot_say_what_is_newest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GlobalModels, "current", Method.current)
    line = (
        'method = "fedavg": asynchronous = "mean" needs the method `current` or `rebased` in FedAvg'
    )
    with pytest.raises(ValueError, match=re.escape(line)):
        buffered(tmp_path)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"mode": "synchronous"}, 'buffer.size = 2 needs mode = "buffered"'),
        ({"clock__deadline": "3"}, 'clock.deadline = "3" is not allowed with mode = "buffered"'),
        ({"clock__server": "fast"}, 'clock.server = "fast" is not allowed with mode = "buffered"'),
        ({"oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed with mode = "buffered"'),
        ({"buffer__size": 5}, "buffer.size = 5 is more than the 4 clients of the roster"),
        ({"buffer__concurrency": 9}, "buffer.concurrency = 9 is more than the 4 clients of the"),
        ({"buffer__staleness": "hinge:3"}, "constant, sqrt, poly:A or hinge:A,B"),
        (
            {"privacy__mode": "central", "privacy__sampling": "secret", "train__steps": 1},
            'privacy.sampling = "secret" is not allowed with profiles',
        ),
        (
            {"score__bn": "recalibrated"},
            'score.bn = "recalibrated" is not allowed with mode = "buffered": its updates are of '
            'several rounds; allowed: "running", "batch"',
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        parse(config(tmp_path, **changes))
