"""``status.json`` and the lock of a run's folder; `fedmosaic status` and `fedmosaic remove`."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from common.settings.version import code_version
from deploy.run import launch
from server_app.method import Client
from server_app.stopped import Stopped
from server_app.storage import checkpoint, removals, status_file
from server_app.storage.lock import held, hold
from server_app.storage.status_file import NAME, ServerStatus, StatusFile
from tests.support.commandline import completed, typed
from tests.support.halves import info
from tests.support.run_folder import buffered, clocked
from tests.support.tiny import Run, listed
from tests.support.waiting import PATIENCE

CLIENTS = {k: Client(info(k=k, name=f"node of {k}"), 10 + k) for k in range(2)}
EVENTS = """
event = [
  {round = 2, client = 1, kind = "left", cause = "moved"},
  {round = 2, client = 2, kind = "missed"},
]
"""


class Nodes:
    """A grid with the connected nodes ``online``; None: the SuperLink is lost."""

    def __init__(self) -> None:
        self.online: list[int] | None = [10, 11]
        self.looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        if self.online is None:
            raise grpc.RpcError
        return self.online


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def begun(folder: Path, nodes: Nodes) -> StatusFile:
    file = StatusFile(folder, nodes, lambda: CLIENTS)  # type: ignore[arg-type]
    file.enter(3, "clients")
    return file


def online(folder: Path) -> list[bool]:
    return [node.online for node in ServerStatus.read(folder).nodes.values()]


def test_a_phase_and_the_connected_nodes_are_written(tmp_path: Path, nodes: Nodes) -> None:
    file = begun(tmp_path, nodes)
    first = ServerStatus.read(tmp_path)
    assert (first.round, first.phase) == (3, "clients")
    named = [(node.node, node.name) for node in first.nodes.values()]
    assert named == [(10, "node of 0"), (11, "node of 1")]
    assert online(tmp_path) == [True, True]
    nodes.online = [10]
    file.renew()
    file.enter(3, "step")
    assert nodes.looks == 1, "the last look was less than ten seconds ago"
    second = ServerStatus.read(tmp_path)
    assert second.phase == "step" and second.nodes == first.nodes


def test_a_client_that_is_away_keeps_the_time_of_its_last_connection(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "PAUSE", -1.0)
    file = begun(tmp_path, nodes)
    seen = ServerStatus.read(tmp_path).nodes[1].seen
    for state in ([10], None):
        nodes.online = state
        file.renew()
        assert online(tmp_path) == [True, False]
        assert ServerStatus.read(tmp_path).nodes[1].seen == seen > 0
    nodes.online = []
    begun(tmp_path, nodes)  # the run resumes
    assert online(tmp_path) == [False, False]
    assert ServerStatus.read(tmp_path).nodes[1].seen == seen


def test_a_large_federation_and_a_damaged_file_have_no_nodes(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "MOST", 1)
    begun(tmp_path, nodes)
    empty = ServerStatus(round=3, phase="clients")
    assert nodes.looks == 0 and ServerStatus.read(tmp_path) == empty
    (tmp_path / NAME).write_text("{")
    assert ServerStatus.read(tmp_path) == ServerStatus()


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    """The folder of a run that client 1 leaves and client 2 misses once."""
    more = {"membership": listed(tmp_path, EVENTS), "node__1__tags": "gpu,north"}
    more |= {"node__1__name": "North Hospital"}
    return run(method="fedavg", rounds=3, min_replies=0.5, **more).folder


def test_status_shows_the_run_and_every_client(folder: Path) -> None:
    done = typed("status", folder, "--json")
    status = json.loads(done.stdout)
    assert (status["state"], status["round"], status["rounds"]) == ("completed", 3, 3)
    named = ("state", "last_reply", "answered", "missed")
    shown = [tuple(client[name] for name in named) for client in status["clients"]]
    assert shown[:2] == [("member", 3, 3, 0), ("left", 1, 1, 0)]
    assert shown[2:] == [("member", 3, 2, 1), ("member", 3, 3, 0)]
    first, second = status["clients"][:2]
    assert (first["samples"], first["tags"], first["node"]) == (24, [], "1")
    assert (second["tags"], second["node"]) == (["gpu", "north"], "North Hospital")
    assert second["version"] == code_version() and 0 < second["last_seen"] <= time.time()
    shown = typed("status", folder).stdout
    assert "round 3 of 3" in shown and "3 of 4 clients take part" in shown and "left" in shown
    assert "North Hospital" in shown and "gpu,north" in shown and " ago" in shown


def test_status_shows_the_staleness_of_the_last_asynchronous_round(tmp_path: Path) -> None:
    buffer = {"staleness": 1.5, "oldest": 2, "in_flight": 2}
    for folder, known in ((buffered(tmp_path / "a"), buffer), (clocked(tmp_path / "b"), None)):
        assert json.loads(typed("status", folder, "--json").stdout)["buffer"] == known
        shown = "; staleness 1.5 (at most 2), 2 in flight; " in typed("status", folder).stdout
        assert shown == (known is not None)


def test_replies_of_asynchronous_rounds_count_also_in_a_later_round(tmp_path: Path) -> None:
    """Client 2 was selected in round 1, and its only reply is in round 3."""
    answer = json.loads(typed("status", buffered(tmp_path / "run"), "--json").stdout)
    named = ("last_reply", "answered", "missed")
    shown = [tuple(client[name] for name in named) for client in answer["clients"]]
    assert shown == [(2, 2, 1), (3, 2, 0), (3, 1, 0), (2, 1, 1)]


def test_the_phase_of_a_run_that_is_going_on_is_shown(folder: Path) -> None:
    (folder / NAME).write_text('{"round": 4, "phase": "clients"}')
    assert json.loads(typed("status", folder, "--json").stdout)["phase"] == ""
    with hold(folder):
        assert json.loads(typed("status", folder, "--json").stdout)["phase"] == "clients of round 4"
        assert "running; round 3 of 3; clients of round 4; " in typed("status", folder).stdout


@pytest.mark.full
def test_the_report_shows_the_events(folder: Path) -> None:
    completed("report", folder, "--out", folder / "report.html")
    page = (folder / "report.html").read_text()
    assert "Membership" in page and "moved" in page


def test_a_removed_client_may_return_and_a_wrong_one_is_one_line(folder: Path) -> None:
    for words, line in (
        ((4,), "client 4 is unknown: the run in .* has clients 0 to 3"),
        ((2, "--undo"), "client 2 is not removed from the run in"),
    ):
        done = typed("remove", folder, *words)
        (error,) = done.stderr.splitlines()
        assert done.returncode == 1 and re.search(line, error)
    assert "client 3 leaves before the next round" in typed("remove", folder, 3).stdout
    assert removals.read(folder) == {3}
    assert "may return" in typed("remove", folder, 3, "--undo").stdout
    assert removals.read(folder) == frozenset()
    (folder / removals.NAME).write_text("1 two\n")
    with pytest.raises(ValueError, match=r"removed\.txt: 'two' is no client number"):
        removals.read(folder)


HOLD = (
    "import sys, time; from pathlib import Path; from server_app.storage.lock import hold\n"
    "with hold(Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(600)"
)


def test_a_folder_is_held_against_others_and_let_go(tmp_path: Path) -> None:
    assert not held(tmp_path)
    with hold(tmp_path):
        assert held(tmp_path)
        taken = pytest.raises(ValueError, match=r"another run \(process \d+\) writes to out = ")
        with taken, hold(tmp_path, patience=0.2):
            pass
    assert not held(tmp_path)
    with hold(tmp_path):
        pass


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "held\n"
        assert held(tmp_path)
        run.kill()
        with hold(tmp_path, patience=PATIENCE):
            pass


def test_a_launcher_sees_a_lost_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GONE", -1.0)  # any time without a sign is too long
    started = time.time()
    finished = launch.finished(tmp_path, started)
    assert not finished(), "it has not begun yet"
    with hold(tmp_path):
        assert not finished()
    with pytest.raises(Stopped, match="the ServerApp ended in the middle of the run"):
        finished()
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    assert finished()


def test_what_ends_a_run_before_its_time_says_how_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as plain, launch.with_remedy(tmp_path, 0.0):
        raise RuntimeError("superlink was killed\nlog")
    assert str(plain.value) == "superlink was killed\nlog"
    checkpoint.path_in(tmp_path).touch()
    for text, shown in (("killed\nlog", "killed"), ("its log ends:\n  x\nlog", "its log ends: x")):
        with pytest.raises(RuntimeError) as told, launch.with_remedy(tmp_path, 0.0):
            raise RuntimeError(text)
        line, log = str(told.value).splitlines()
        assert line == f"{shown}; the checkpoint is kept, go on with --resume {tmp_path}"
        assert log == "log"
