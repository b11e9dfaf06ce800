"""A federation over gRPC whose clients join, leave and return, and the replay of what happened."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.flower.processes import environment
from deploy.run.grpc import Federation, node_config, start_federation, supernode_command
from deploy.run.settings import app_folder
from tests.support.tiny import TinyRun, flat, play
from tests.support.waiting import until

SETTINGS = {"method": "scaffold", "clients": 4, "min_replies": 0.3}
RUNNING = {"min_clients": 2, "leave_after": 1, "rounds": 10_000, "timeout": 60.0}


def begin(federation: Federation, k: int, name: str) -> None:
    """Start another SuperNode for client k."""
    home = federation.processes.logs.parent / "home" / name
    command = supernode_command(federation.fleet, node_config(k, 4, {}))
    federation.processes.start(name, command, environment({}, home))
    federation.processes.spare(name)


@pytest.mark.exhaustive
def test_clients_join_leave_and_return_over_grpc_and_a_replay_gives_the_same_bits(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    settings = flat(out, **SETTINGS, **RUNNING)

    def journal() -> list[dict[str, Any]]:
        return TinyRun(out).journal if (out / "journal.jsonl").exists() else []

    def seen(k: int, kind: str) -> bool:
        events = (event for entry in journal() for event in entry.get("events", []))
        return any((event["k"], event["kind"]) == (k, kind) for event in events)

    warm = sys.platform == "linux"
    with start_federation(app_folder(), 3, tmp_path / "flower", warm_start=warm) as federation:
        run = federation.submit(settings)
        until("a round of three clients", lambda: len(journal()) > 1)
        begin(federation, 3, "newcomer")
        until("the newcomer", lambda: seen(3, "joined"))
        federation.processes.started["supernode-1"].send_signal(signal.SIGTERM)
        until("the departure", lambda: seen(1, "left"))
        begin(federation, 1, "back")
        until("the return", lambda: seen(1, "returned"))
        rounds = len(journal()) + 1
        until("further rounds", lambda: len(journal()) > rounds)
        federation.control.stop(run)
        until("the end", lambda: federation.control.status(run).status.startswith("finished"))
    real = TinyRun(out).timeless
    assert real[-1]["replied"] == [0, 1, 2, 3]

    replay = {"rounds": len(real) - 1, "membership": str(out / "journal.jsonl")}
    replayed = play(flat(tmp_path / "replay", **SETTINGS, **replay)).timeless
    same = ("round", "selected", "replied", "accuracy", "loss")
    assert [[entry.get(key) for key in same] for entry in replayed] == [
        [entry.get(key) for key in same] for entry in real
    ]
