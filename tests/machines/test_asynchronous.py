"""Asynchronous rounds over gRPC with faults, and their replay on loopback."""

import signal
from pathlib import Path
from typing import Any

import pytest

from server_app.storage.status_file import ServerStatus
from tests.support.faults import (
    CLIENT_APP,
    NODE,
    SERVER_APP,
    Machines,
    Run,
    Sealed,
    processes,
    resumed,
    settings,
)
from tests.support.tiny import TinyRun, play
from tests.support.waiting import PATIENCE, until

RUN: dict[str, Any] = {"mode": "buffered", "method": "fedavg", "fleet": "mlp@0.25"}
VICTIMS = {
    "ServerApp": ("superlink", SERVER_APP),
    "SuperLink": ("superlink", "flower-superlink"),
    "SuperNode": ("supernode-1", NODE),
    "ClientApp": ("supernode-1", CLIENT_APP),
}
RUN |= {"global_model": "mlp@0.25", "buffer__size": 2, "timeout": 60.0}


def replay(run: Run, **changes: Any) -> None:
    """Replay a run on loopback by its journal, and compare scores and weights."""
    real, journal = TinyRun(run.out), str(run.out / "journal.jsonl")
    folder = run.out.with_name("replay")
    again = play(settings(folder, **{**RUN, **changes, "membership": journal}))
    for mine, other in zip(real.journal, again.journal, strict=True):
        assert [mine.get(key) for key in ("round", "replied", "accuracy", "loss")] == [
            other.get(key) for key in ("round", "replied", "accuracy", "loss")
        ]
    assert again.weights == real.weights


def changes_of(journal: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """Return client and kind of every change of the members."""
    return {(event["k"], event["kind"]) for e in journal for event in e.get("events", [])}


def events(run: TinyRun) -> list[tuple[str, int]]:
    """Return the events of all jobs, each with its client."""
    steps = (entry["buffer"]["events"] for entry in run.journal[1:])
    return [(kind, k) for step in steps for kind, k, _ in step]


@pytest.mark.full
@pytest.mark.parametrize("sealed", [False, True])
def test_six_nodes_of_which_one_is_killed_one_slow_and_one_late(
    sealed: bool, tmp_path: Path
) -> None:
    changes = {"rounds": 16, "buffer__concurrency": 4, "min_clients": 2, "leave_after": 1}
    with Machines(tmp_path, size=6, later=(5,), warm=True, sealed=sealed, **RUN, **changes) as run:
        run.await_round(2)
        run.strike(run.pids(0), signal.SIGKILL)
        for k in (1, 2, 3):  # so that no step is complete without the late one
            run.strike(run.pids(k), signal.SIGSTOP)
        run.start_node(5)
        until("client 5 joins", lambda: (5, "joined") in changes_of(run.journal), 0.1)
        for k in (1, 2, 3):
            run.strike(run.pids(k), signal.SIGCONT)
        run.start_node(0)
        real = run.end()
    assert {k for kind, k in events(real) if kind == "arrived"} >= {4, 5}
    assert [entry["round"] for entry in real.journal] == list(range(17))
    replay(run, clients=6, rounds=16, buffer__concurrency=4)


@pytest.mark.full
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_sealed_run_whose_process_is_killed_is_replayed_whole(
    victim: str, tmp_path: Path
) -> None:
    home, pattern = VICTIMS[victim]
    changes = {"rounds": 5, "buffer__concurrency": 3, "timeout": 120.0}
    with Sealed(tmp_path, **{**RUN, **changes}) as run:

        def found() -> set[int]:
            run.check()
            here = ServerStatus.read(run.out)
            at_work = here.phase == "clients" and here.round >= 2
            return processes(run.home(home), pattern) if at_work else set()

        run.strike(until(f"{victim} at work", found, 0.01), signal.SIGKILL)
        output, errors = run.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in output + errors, output + errors
    if run.process.returncode:
        assert victim != "ClientApp" and f"go on with --resume {run.out}" in errors, errors
        resumed(run.out)
    real = TinyRun(run.out)
    assert len(real.journal) == 6
    replay(run, rounds=5, buffer__concurrency=3)
