"""Three runtimes, one result: the same seed gives the same bits wherever the clients run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from common.parse import to_toml
from common.settings.config import Value
from deploy.flower.messages import from_bytes, to_bytes
from deploy.flower.watchdog import living
from deploy.run import preload
from deploy.run.grpc import start_federation
from deploy.run.loopback import Loopback, Nodes, Work
from deploy.run.ray import run_simulation
from deploy.settings import app_folder, load
from server_app.tracking.sink import progress_of
from tests.support.battery import EXAMPLE, METHODS, PLUGIN, config
from tests.support.commandline import completed, typed
from tests.support.tiny import TinyRun, flat, play
from tests.support.waiting import PATIENCE, reachable, until, watched

FEDERATION = {
    **{"method": "fedorion", "clients": 3, "rounds": 2},
    **{"fleet": "mlp@0.25,cnn2@0.5,lab.nets:Shallow", "node__1__model": "lenet5"},
    **{"plugins": str(PLUGIN), "data__partition": "label_dirichlet", "data__alpha": 1.0},
    "score__primary": "personal",
    **{"profiles": "pi5,phone-low", "clock__jitter": 0.3, "clock__bandwidth_sigma": 0.2},
    **{"clock__deadline": "q.9", "clock__partial": True},
}
STEPS = {
    **{"method": "ditto", "clients": 3, "rounds": 5, "fleet": "mlp@0.25"},
    **{"profiles": "pi5,phone-low", "clock__jitter": 0.3, "mode": "buffered"},
    **{"buffer__size": 1, "buffer__concurrency": 2, "score__clients_every": 2},
}
"""Asynchronous rounds."""
BEGUN = """
import sys
from deploy import cli
from deploy.run import preload
preload.begin = lambda: sys.exit("torch" in sys.modules and "too late" or "begun")
cli.app(sys.argv[1:])
"""
EXCHANGES = ("co-boosting", "dl-mh", "fedgkt", "fedin", "heterofl", "i-dl-mh", "scaffold", EXAMPLE)
"""Methods with different kinds of exchange and of state, and one that travels in the bundle."""
LONGER = {"rounds": 4, "train__epochs": 6}
KILLED = """
import os, signal, sys
from deploy.cli import main
from deploy.run.loopback import Loopback
push, killed_in = Loopback.push_messages, sys.argv.pop(1)
def push_and_die(self, messages):
    sent = list(messages)
    names = push(self, sent)
    if sent[0].metadata.message_type == "train" and sent[0].metadata.group_id == killed_in:
        os.kill(os.getpid(), signal.SIGKILL)
    return names
Loopback.push_messages = push_and_die
main()
"""
"""``fedmosaic``, killed in a round: its clients have begun to train, in processes of their own."""


def experiment(folder: Path, **changes: object) -> Path:
    """The federation as a TOML file."""
    settings = flat(folder / "unused", **{**FEDERATION, **changes})
    settings |= {"out": "", "state-dir": "", "experiment": ""}
    path = folder / "experiment.toml"
    path.write_text(to_toml(settings))
    return path


def launch(folder: Path, runtime: str, end: int, **changes: object) -> TinyRun:
    """The federation on ``runtime``, where ``end`` is its last round."""
    track = "tensorboard" if find_spec("tensorboard") else ""  # of the extra "track"
    out, file = folder / runtime, experiment(folder, track=track, **changes)
    with watched() as sockets:
        done = typed("run", file, "--runtime", runtime, "--out", out)
    assert reachable(sockets) == [], "nothing listens where other machines reach it"
    listeners = {"loopback": set(), "ray": {"gcs_server", "raylet"}, "grpc": {"flower-superlin"}}
    assert listeners[runtime] <= {name for name, _ in sockets}, "they were looked at"
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (out / "report.html").exists() and (out / "model.safetensors").exists()
    assert not track or progress_of(out, track).round == end
    assert load(out / "config.toml")["runtime"] == runtime
    return TinyRun(out)


@pytest.mark.full
def test_loopback_ray_and_grpc_give_the_same_bits_and_end_alike(tmp_path: Path) -> None:
    _, *rounds = play(flat(tmp_path / "all", **FEDERATION)).journal
    scored = [entry["personal"]["accuracy"] for entry in rounds]
    target = max(scored)
    stop = {"rounds": 4, "score__stop": True, "score__target": target}
    end = 1 + scored.index(target)
    names = ("loopback", "ray", "grpc")
    loopback, ray, grpc = (launch(tmp_path, name, end, **stop) for name in names)
    assert {run.summary["ended"] for run in (loopback, ray, grpc)} == {"target"}
    assert loopback.summary["runtime"] == "loopback" and grpc.summary["runtime"] == "grpc"
    assert loopback.timeless == ray.timeless == grpc.timeless
    assert loopback.weights == ray.weights == grpc.weights
    confusions = {(run.folder / "confusion.json").read_bytes() for run in (loopback, ray, grpc)}
    assert len(confusions) == 1
    models = [client["model"] for client in grpc.summary["clients"]]
    assert models == ["mlp@0.25", "lenet5", "lab.nets:Shallow"], "[node.1] is heard everywhere"


@pytest.mark.full
@pytest.mark.parametrize("method", ["ditto", "fedorion", "fedproto"])
def test_asynchronous_rounds_have_the_same_bits_on_three_runtimes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"buffer__cache": True, "buffer__staleness": "constant"} if method == "ditto" else {}
    settings = {**STEPS, **cache, "method": method}
    monkeypatch.setattr(sys.modules[__name__], "FEDERATION", settings)
    runs = [launch(tmp_path, name, 5) for name in ("loopback", "ray", "grpc")]
    assert all(r.timeless == runs[0].timeless and r.weights == runs[0].weights for r in runs)
    assert any(age for entry in runs[0].journal[1:] for age in entry["buffer"]["staleness"])


@pytest.mark.full
def test_secure_sums_have_the_same_bits_on_three_runtimes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"method": "fedavg", "clients": 3, "rounds": 2, "fleet": "mlp@0.25"}
    monkeypatch.setattr(sys.modules[__name__], "FEDERATION", {**settings, "secure__mode": "on"})
    runs = [launch(tmp_path, name, 2) for name in ("loopback", "ray", "grpc")]
    assert all(r.timeless == runs[0].timeless and r.weights == runs[0].weights for r in runs)
    assert all("clipped" in entry for entry in runs[0].journal[1:])


def test_what_workers_import_ahead_is_there() -> None:
    assert [name for name in preload.MODULES if find_spec(name) is None] == [], "passed over"


@pytest.mark.full
@pytest.mark.parametrize(("refused", "begun"), [([], True), (["-s", "rounds=-5"], False)])
def test_workers_begin_before_torch(refused: list[str], begun: bool, tmp_path: Path) -> None:
    """Where they are needed; the others end by what else is wrong."""
    alone = ["--workers", "0"] if refused else []
    words = ["run", *alone, *refused, "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", BEGUN, *words], capture_output=True, text=True)
    assert (done.stderr.strip() == "begun") == begun, done.stderr
    assert done.returncode == 1 and "too late" not in done.stderr


def two_clients(method: str, out: Path) -> dict[str, Value]:
    """A run of two clients that reads back whatever a method keeps.

    FedKF's clients have a generator from round 2 on; with one client a round, one of the two uses
    its own, and Adam's moments, a second time in rounds 2 to 4. And OCA is not ACA. FedMD's clients
    keep the state of both their optimisers.
    """
    more: dict[str, dict[str, Any]] = {"fedkf": {"rounds": 4, "per_round": 1}}
    more["fedmd"] = {"rounds": 3, "fedmd__optimizers": "kept"}
    return config(method, out, clients=2, **more.get(method, {}))


def same_over_grpc(methods: Iterable[str], folder: Path, *, warm_start: bool) -> None:
    """Run each method in this process and over one gRPC federation, and compare."""
    settings = {name: two_clients(name, folder / name / "here") for name in methods}
    work = folder / "flower"
    start = start_federation(app=app_folder(), clients=2, work=work, warm_start=warm_start)
    with start as federation:
        for name, here in settings.items():
            out = folder / name / "there"
            there = here | {"out": str(out), "state-dir": str(out / "state"), "device": "cpu"}
            status = federation.control.follow(federation.submit(there))
            assert status.completed, f"{name}: {status.details}"
            grpc, alone = TinyRun(out), play(here)
            assert grpc.timeless == alone.timeless, name
            assert grpc.weights == alone.weights, name


@pytest.mark.full
def test_different_exchanges_give_the_same_bits_over_grpc(tmp_path: Path) -> None:
    same_over_grpc(EXCHANGES, tmp_path, warm_start=sys.platform == "linux")


@pytest.mark.exhaustive
def test_every_method_gives_the_same_bits_over_grpc(tmp_path: Path) -> None:
    same_over_grpc(METHODS, tmp_path, warm_start=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits_in_ray(method: str, tmp_path: Path) -> None:
    here = two_clients(method, tmp_path / "here")
    out = tmp_path / "there"
    there = here | {"out": str(out), "state-dir": str(out / "state")}
    status = run_simulation(app=app_folder(), clients=2, run_config=there, work=tmp_path / "flower")
    assert status.completed, status.details
    ray, alone = TinyRun(out), play(here)
    assert ray.timeless == alone.timeless and ray.weights == alone.weights


def test_workers_change_nothing(tmp_path: Path) -> None:
    alone = play(flat(tmp_path / "0", **FEDERATION))
    settings = flat(tmp_path / "n", **FEDERATION)
    pooled = play(settings, Loopback(3, settings, workers=3))
    assert alone.timeless == pooled.timeless
    assert alone.weights == pooled.weights


@pytest.mark.full
def test_a_killed_run_that_is_resumed_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    path, part = experiment(tmp_path, **LONGER), tmp_path / "part"
    completed("run", path, "--workers", 0, "--out", tmp_path / "whole")
    whole = TinyRun(tmp_path / "whole")
    line = [sys.executable, "-c", KILLED, "2", "run", path, "--out", part]
    process = subprocess.Popen(line, start_new_session=True)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert len((part / "journal.jsonl").read_text().splitlines()) == 2
    assert not (part / "summary.json").exists(), "killed too late to show anything"
    until("the end of its workers", lambda: not living({process.pid}))

    completed("run", "--resume", part)
    assert TinyRun(part).timeless == whole.timeless
    assert TinyRun(part).weights == whole.weights


class Grouping(Nodes):
    """Clients that send back what they got, in groups that are counted."""

    lost = ()

    def __init__(self, clients: int) -> None:
        super().__init__(clients, {})
        self.groups: list[int] = []

    def __exit__(self, *error: object) -> None: ...

    def _submit(self, work: Work) -> Future[list[bytes]]:
        content, letters = work
        self.groups.append(len(letters))
        asked = [from_bytes(head + content) for head, _, _ in letters]
        replies: Future[list[bytes]] = Future()
        replies.set_result([to_bytes(Message(each.content, reply_to=each)) for each in asked])
        return replies


@pytest.mark.parametrize(("kind", "groups"), [("evaluate", [12] * 8 + [4]), ("train", [1] * 100)])
def test_what_is_soon_answered_goes_to_a_worker_in_groups(kind: str, groups: list[int]) -> None:
    grid, same = Grouping(100), RecordDict({"c": ConfigRecord({"x": 1})})
    names = list(grid.push_messages([Message(same, k + 1, kind) for k in range(100)]))
    assert grid.groups == groups
    replies = {each.metadata.reply_to_message_id: each for each in grid.pull_messages(names)}
    assert [replies[name].metadata.src_node_id for name in names] == list(range(1, 101))
    assert list(grid.pull_messages(names)) == []


def test_a_lost_worker_is_reported_and_the_next_round_works(tmp_path: Path) -> None:
    settings = flat(tmp_path, **FEDERATION, min_replies=0.3)
    grid = Killing(3, settings, workers=1)
    result = play(settings, grid)
    assert grid.killed and result.summary["status"] == "completed"
    lost = result.journal[1]["failures"]
    assert len(lost) == 2 and all("process was lost" in failure["reason"] for failure in lost)
    assert result.journal[2]["failures"] == [] and len(result.journal[2]["replied"]) == 3


class Killing(Loopback):  # type: ignore[misc]
    """Its worker dies once, when the first client has trained and the others have not begun."""

    killed = False

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        first, *others = messages
        if self.killed or first.metadata.message_type != "train":
            return super().push_messages([first, *others])
        self.killed = True
        names = super().push_messages([first])
        assert self._replies[names[0]][0].exception() is None
        (worker,) = self._pool._processes
        os.kill(worker, signal.SIGSTOP)
        names += super().push_messages(others)
        os.kill(worker, signal.SIGKILL)
        return names
