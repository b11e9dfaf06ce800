"""A federation over gRPC whose clients join, leave and return, and the replay of what happened."""

import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from common.exchange.records import StateDict
from common.model_file import digest
from common.settings.parse import to_toml
from deploy.flower.processes import environment
from deploy.machines.certificates import Certificates, make
from deploy.run.grpc import Federation, node_config, start_federation, supernode_command
from deploy.run.settings import app_folder
from server_app.storage import checkpoint
from tests.bench import soak
from tests.support.commandline import typed
from tests.support.tiny import TinyRun, flat, listed, play
from tests.support.waiting import until

SETTINGS = {"method": "scaffold", "clients": 4, "min_replies": 0.3}
RUNNING = {"min_clients": 2, "leave_after": 1, "rounds": 10_000, "timeout": 60.0}
SAME = ("round", "selected", "replied", "accuracy", "loss")


def begin(federation: Federation, k: int, name: str, keys: Certificates | None) -> None:
    """Start another SuperNode for client k, on another machine."""
    home = federation.processes.logs.parent / "home" / name
    command = supernode_command(federation.fleet, node_config(k, 4, {}, keys), keys, k)
    federation.processes.start(name, command, environment({}, home))
    federation.processes.spare(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sealed", [False, True])
def test_clients_join_leave_and_return_over_grpc_and_a_replay_gives_the_same_bits(
    sealed: bool, tmp_path: Path
) -> None:
    out, keys = tmp_path / "out", make(tmp_path / "certs", [], 4) if sealed else None
    settings = flat(out, **SETTINGS, **RUNNING)

    def journal() -> list[dict[str, Any]]:
        return TinyRun(out).journal if (out / "journal.jsonl").exists() else []

    def seen(k: int, kind: str) -> bool:
        events = (event for entry in journal() for event in entry.get("events", []))
        return any((event["k"], event["kind"]) == (k, kind) for event in events)

    warm = sys.platform == "linux"
    start = start_federation(app_folder(), 3, tmp_path / "flower", None, warm, keys)
    with start as federation:
        if keys is not None:
            federation.control.register(keys.public(3))
        run = federation.submit(settings)
        until("a round of three clients", lambda: len(journal()) > 1)
        begin(federation, 3, "newcomer", keys)
        until("the newcomer", lambda: seen(3, "joined"))
        federation.processes.started["supernode-1"].send_signal(signal.SIGTERM)
        until("the departure", lambda: seen(1, "left"))
        begin(federation, 1, "back", keys)
        until("the return", lambda: seen(1, "returned"))
        rounds = len(journal()) + 1
        until("further rounds", lambda: len(journal()) > rounds)
        federation.control.stop(run)
        until("the end", lambda: federation.control.status(run).status.startswith("finished"))
    real = TinyRun(out).timeless
    assert real[-1]["replied"] == [0, 1, 2, 3]

    last = len(real) - 1
    replay = {"rounds": last, "membership": str(out / "journal.jsonl")}
    replayed = play(flat(tmp_path / "replay", **SETTINGS, **replay)).timeless
    assert [[entry.get(key) for key in SAME] for entry in replayed] == [
        [entry.get(key) for key in SAME] for entry in real
    ]
    states = [checkpoint.load(folder, last).state for folder in (out, tmp_path / "replay")]
    for name in ("w", "c"):
        assert len({digest(cast("StateDict", state[name])) for state in states}) == 1
    sent, plain = (entries[1]["bytes"]["up"] for entries in (real, replayed))
    assert (sent > plain) is sealed, "a seal adds its own bytes"


EVENTS = """
event = [
  {round = 2, client = 1, kind = "left"},
  {round = 2, client = 2, kind = "missed"},
  {round = 3, client = 3, kind = "joined"},
  {round = 4, client = 1, kind = "replaced"},
  {round = 4, client = 2, kind = "left"},
  {round = 5, client = 2, kind = "returned"},
]
"""


@pytest.mark.full
def test_a_list_of_events_gives_the_same_bits_in_a_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    events = {"membership": listed(tmp_path, EVENTS), "rounds": 5, "leave_after": 1}
    settings = flat(tmp_path / "unused", **SETTINGS, **events)
    file = tmp_path / "experiment.toml"
    file.write_text(to_toml(settings | {"out": "", "state-dir": "", "experiment": ""}))
    runs = []
    for runtime in ("loopback", "ray"):
        done = typed("run", file, "--runtime", runtime, "--out", tmp_path / runtime)
        assert done.returncode == 0, done.stdout + done.stderr
        runs.append(TinyRun(tmp_path / runtime))
    assert runs[0].timeless == runs[1].timeless and runs[0].weights == runs[1].weights
    assert [entry["replied"] for entry in runs[1].journal[1:]] == [
        *([0, 1, 2], [0], [0, 2, 3], [0, 1, 3], [0, 1, 2, 3])
    ]


def test_the_faults_of_a_soak_are_those_of_its_seed() -> None:
    faults = soak.schedule(200, 1)
    assert faults == soak.schedule(200, 1) != soak.schedule(200, 2)
    assert {fault.kind for fault in faults} == {*soak.KINDS, "join"}
    for t in range(200):
        busy = [fault.k for fault in faults if fault.t <= t <= fault.end]
        assert len(set(busy)) == len(busy) <= soak.AWAY + len(soak.LATER)
    assert max(fault.end for fault in faults) < 199, "every client is back at the end"
