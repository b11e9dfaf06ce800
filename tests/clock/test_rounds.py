"""Rounds on the virtual clock, by hand and as whole runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.exchange.protocol import Reply
from common.parse import parse
from server_app.clock.devices import Devices
from server_app.clock.prediction import quantile
from server_app.clock.rounds import VirtualClock
from server_app.selection import Selection
from server_app.stopped import Stopped
from tests.support.halves import client, task
from tests.support.tiny import TinyRun, flat, listed, play

PROFILES = {"profiles": "fast,slow", "profile__fast__flops": 1e9, "profile__slow__flops": 2e7}
PROFILES |= {f"profile__{name}__network": "lan" for name in ("fast", "slow")}
METHOD = {"method": "fedavg", "fleet": "mlp@0.25"}


def clocked(out: Path, **changes: Any) -> TinyRun:
    return play(flat(out, **{**METHOD, **PROFILES, **changes}))


def clocks(run: TinyRun) -> list[dict[str, Any]]:
    return [entry["clock"] for entry in run.journal[1:]]


def kinds(run: TinyRun) -> list[dict[int, str]]:
    return [{f["k"]: f["kind"] for f in entry.get("failures", [])} for entry in run.journal[1:]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return clocked(tmp_path_factory.mktemp("plain"))


def test_a_round_takes_as_long_as_its_slowest_client(plain: TinyRun) -> None:
    end = 0.0
    for entry in plain.journal[1:]:
        clock, metrics = entry["clock"], entry["client_metrics"]
        for k, seconds in clock["clients"].items():
            rate = 2e7 if int(k) % 2 else 1e9
            work = metrics[k]["steps"] * 0.001 + metrics[k]["flops"] / rate
            moved = 8 * sum(clock["jobs"][k][:2]) / 100e6
            assert seconds == pytest.approx(0.01 + moved + work, abs=1e-6)
        assert clock["start"] == end and clock["late"] == []
        longest = max(clock["clients"].values())
        assert clock["end"] == pytest.approx(clock["start"] + longest, abs=1e-6)
        end = clock["end"]
        assert entry["measured"].keys() == clock["clients"].keys()
    assert plain.summary["clock"] == {"end": end}


def test_the_clock_changes_no_other_byte_of_the_journal(plain: TinyRun, tmp_path: Path) -> None:
    without = play(flat(tmp_path, **METHOD, flops=True))
    entries = [{k: v for k, v in e.items() if k != "clock"} for e in plain.timeless]
    assert entries == without.timeless and plain.weights == without.weights


def test_the_server_and_scores_take_time_if_the_clock_counts_them(
    plain: TinyRun, tmp_path: Path
) -> None:
    more = {"clock__scores": True, "score__clients_every": 1, "clock__server": "slow"}
    longer = clocked(tmp_path, **more, method="fedgkd")
    bare = clocked(tmp_path / "bare", **{"score__clients_every": 1}, method="fedgkd")
    ends = [[c["end"] - c["start"] for c in clocks(run)] for run in (longer, bare)]
    assert all(a > b + 0.01 for a, b in zip(*ends, strict=True))


def test_late_replies_are_failures_and_their_operations_count(
    plain: TinyRun, tmp_path: Path
) -> None:
    fast = max(clocks(plain)[0]["clients"][k] for k in "02")
    run = clocked(tmp_path, clock__deadline=f"{fast + 0.001:.6f}")
    assert kinds(run) == [{1: "after deadline", 3: "after deadline"}] * 2
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 2]] * 2
    assert [c["late"] for c in clocks(run)] == [[1, 3]] * 2
    assert [round(c["end"] - c["start"], 6) for c in clocks(run)] == [round(fast + 0.001, 6)] * 2
    assert run.journal[1]["flops"] == plain.journal[1]["flops"], "they have trained"
    quantile = clocked(tmp_path / "q", clock__deadline="q.5")
    assert [entry["replied"] for entry in quantile.journal[1:]] == [[0, 2]] * 2
    assert quantile.weights == run.weights


def test_the_first_replies_count_of_more_clients_than_needed(tmp_path: Path) -> None:
    run = clocked(tmp_path, per_round=2, clock__over_selection=1.6)
    for entry, clock, failures in zip(run.journal[1:], clocks(run), kinds(run), strict=True):
        order = sorted(clock["clients"], key=lambda k: (clock["clients"][k], int(k)))
        assert len(entry["selected"]) == 4 and entry["replied"] == sorted(map(int, order[:2]))
        assert failures == dict.fromkeys(map(int, order[2:]), "not needed")
        taken = clock["clients"][order[1]]
        assert clock["end"] == pytest.approx(clock["start"] + taken, abs=1e-6)


def test_lost_jobs_train_nothing_and_are_noticed(tmp_path: Path) -> None:
    run = clocked(tmp_path, clock__loss=0.5, clock__notice=7.0, rounds=3, seed=3)
    lost = [[k for k, kind in failures.items() if kind == "lost"] for failures in kinds(run)]
    assert any(lost), "with this seed"
    for entry, clock, ks in zip(run.journal[1:], clocks(run), lost, strict=True):
        assert not {*ks} & {*map(int, entry["client_metrics"])}
        length = clock["end"] - clock["start"]
        assert length >= 7.0 if ks else length < 7.0


def test_partial_work_takes_the_steps_that_fit(plain: TinyRun, tmp_path: Path) -> None:
    slow = clocks(plain)[0]["clients"]["1"]
    run = clocked(tmp_path, clock__deadline=f"{slow / 2:.6f}", clock__partial=True)
    full, part = (r.journal[1]["client_metrics"] for r in (plain, run))
    assert part["0"]["steps"] == full["0"]["steps"] > part["1"]["steps"] >= 1
    assert kinds(run) == [{}, {}]
    assert all(c["end"] - c["start"] <= slow / 2 for c in clocks(run))
    nova, avg = (
        clocked(tmp_path / m, clock__deadline=f"{slow / 2:.6f}", clock__partial=True, method=m)
        for m in ("fednova", "fedavg")
    )
    assert nova.weights != avg.weights, "a_k from the client's real steps"


def test_a_run_on_the_clock_resumes_to_the_same_bits(tmp_path: Path) -> None:
    more = {"clock__deadline": "q.8", "clock__partial": True, "clock__jitter": 0.2}
    more |= {"score__clients_every": 1}
    whole = clocked(tmp_path / "whole", **more, rounds=3)
    clocked(tmp_path / "part", **more, rounds=2)
    resumed = clocked(tmp_path / "part", **more, rounds=3, resume=True)
    assert resumed.timeless == whole.timeless and resumed.weights == whole.weights


def test_a_journal_replays_late_and_lost_jobs(tmp_path: Path) -> None:
    more = {"clock__deadline": "q.6", "clock__loss": 0.3, "rounds": 3, "method": "scaffold"}
    run = clocked(tmp_path / "first", **more)
    again = clocked(tmp_path / "again", **more, membership=str(run.folder / "journal.jsonl"))
    assert {kind for failures in kinds(run) for kind in failures.values()} == {
        "lost",
        "after deadline",
    }
    assert again.timeless == run.timeless and again.weights == run.weights


def test_a_replayed_miss_takes_as_long_as_an_unanswered_request(tmp_path: Path) -> None:
    missed = listed(tmp_path, '[[event]]\nround = 1\nclient = 1\nkind = "missed"\n')
    run = clocked(tmp_path / "run", membership=missed, min_replies=0.5, clock__notice=9.0)
    assert [c["end"] - c["start"] >= 9.0 for c in clocks(run)] == [True, False]


def test_a_round_without_any_job_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="1 needs 1; client 0: its job was lost after "):
        clocked(tmp_path, clock__loss=0.98)


def test_the_next_job_of_a_late_client_is_predicted_by_its_late_one(tmp_path: Path) -> None:
    # fml trains two networks, more than the first prediction
    run = clocked(tmp_path, method="fml", clock__deadline="0.06", clock__partial=True)
    assert kinds(run) == [{1: "after deadline", 3: "after deadline"}, {}]
    assert [job[2] for job in clocks(run)[1]["jobs"].values()] == [4, 2, 4, 2]


def test_late_clients_have_no_second_exchange(tmp_path: Path) -> None:
    run = clocked(tmp_path, method="fedmd", data__public=0.2, clock__deadline="q.5")
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 2]] * 2
    steps = [{k: job[2] for k, job in c["jobs"].items()} for c in clocks(run)]
    assert steps == [{"0": 4, "1": 0, "2": 4, "3": 0}] * 2, "predictions take none"
    assert all(entry["measured"].keys() == {*"0123"} for entry in run.journal[1:])


def test_partial_work_and_traces_count_for_the_second_exchange(tmp_path: Path) -> None:
    part = {"method": "fedmd", "data__public": 0.2, "clock__deadline": "0.095"}
    whole = clocked(tmp_path / "whole", **part)
    less = clocked(tmp_path, **part, clock__partial=True)  # from round 2 on the job is known
    steps = [[c["jobs"]["1"][2] for c in clocks(run)] for run in (whole, less)]
    assert steps == [[4, 4], [4, 2]]
    first = clocks(whole)[0]["clients"]["1"] - 0.001
    trace = tmp_path / "trace.jsonl"
    lines = [{"k": k, "period": 0, "on": [[0, first], [5, 9]]} for k in range(4)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    away = {"profile__slow__available": str(trace), "method": "fedmd", "data__public": 0.2}
    waits = clocked(tmp_path / "waits", **away, rounds=1)
    assert clocks(waits)[0]["end"] > 5.0 and kinds(waits) == [{}]


def test_devices_that_are_away_are_not_selected(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    on = [[[0, 0.01]], [[5, 1000]], [[0, 1000]], [[0, 1000]]]
    lines = [{"k": k, "period": 0, "on": intervals} for k, intervals in enumerate(on)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    away = {f"profile__{name}__available": str(trace) for name in ("fast", "slow")}
    run = clocked(tmp_path / "run", **away, clock__notice=8.0)
    assert [entry["selected"] for entry in run.journal[1:]] == [[0, 2, 3], [1, 2, 3]]
    assert kinds(run)[0] == {0: "lost"} and run.journal[1]["replied"] == [2, 3]
    tagged = clocked(tmp_path / "tag", **away, select__tags="a", node__1__tags="a")
    assert [c["start"] for c in clocks(tagged)] == [5.0, clocks(tagged)[0]["end"]]
    trace.write_text(json.dumps({**lines[0], "k": 7}) + "\n")
    with pytest.raises(ValueError, match=r"trace.jsonl has no trace of client 0"):
        Devices(parse(flat(tmp_path, **METHOD, **PROFILES, **away))).check()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"clock__deadline": "0.001"}, "clock.deadline = 0.001 s is under every prediction; the "),
        ({"profiles": "", "node__0__profile": "fast"}, "client 1 has no profile: set profiles, or"),
    ],
)
def test_a_run_that_cannot_be_timed_stops_with_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(Stopped, match=line):
        clocked(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"profiles": "pi6"}, "profile 'pi6' is unknown; did you mean 'pi5'"),
        ({"profiles": "", "clock__deadline": "3"}, 'clock.deadline = "3" needs profiles'),
        ({"clock__partial": True}, "clock.partial = true needs a clock.deadline"),
        ({"clock__over_selection": 1.5}, "clock.over-selection = 1.5 needs per-round"),
        ({"clock__jitter": 1e4}, r"clock.jitter = 10000.0 is not allowed; .* equal to 3"),
        ({"profile__slow__flops": 1e-320}, r"flops = 1e-320 is not allowed; .* equal to 1"),
        ({"clock__deadline": "9" * 400}, 'clock.deadline = "9+" is not allowed'),
        ({"clock__deadline": "q1.5"}, 'clock.deadline = "q1.5" is not allowed'),
        (
            {"clock__fit": "refuse"},
            r"\[profile.\w+\] has no memory, which clock.fit = 'refuse' needs",
        ),
        ({"privacy__mode": "central"}, "profiles are not allowed with privacy.mode"),
        ({"privacy__mode": "central", "train__steps": 3, "clock__deadline": "3"}, "the noise is"),
    ],
)
def test_wrong_settings_of_the_clock_are_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        parse(flat(tmp_path, **{**METHOD, **PROFILES, **changes}))
    assert "\n" not in str(refused.value)


def test_under_privacy_times_do_not_depend_on_samples(tmp_path: Path) -> None:
    private = {
        "privacy__mode": "central",
        "train__steps": 3,
        "data__partition": "quantity_dirichlet",
    }
    runs = [clocked(tmp_path / str(s), **private, data__seed=s) for s in (1, 2)]
    assert clocks(runs[0]) == clocks(runs[1])
    for clock in clocks(runs[0]):
        assert 0 < clock.pop("end") > clock.pop("start") and not any(clock.values())
    sizes = [[member.get("n") for member in run.journal[0]["clients"]] for run in runs]
    assert sizes == [[0] * 4] * 2 and runs[0].weights != runs[1].weights
    of_run = task(**METHOD, **PROFILES, **private)
    ends = []
    for replies in (4, 0):  # a client's data may prevent its reply
        ticking = VirtualClock(of_run)
        clients = [client(k, model="mlp@0.25") for k in range(4)]
        ticking.begin(1, 0, clients)
        ticking.dispatch(clients)
        ticking.judge([(c, Reply()) for c in clients[:replies]], dict.fromkeys(range(4), (9, 9)))
        ends.append(ticking.end)
    assert ends[0] == ends[1] > 0


def test_shares_of_clients_are_exact(tmp_path: Path) -> None:
    more = {**METHOD, **PROFILES, "clients": 200, "per_round": 100, "clock__over_selection": 1.1}
    assert Selection(parse(flat(tmp_path, **more))).size == 110
    assert quantile({k: k for k in range(100)}, 0.55) == 54
