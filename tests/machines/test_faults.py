"""What goes wrong on real machines, one thing a run.

Either the run completes and the journal says who was lost and why, or it stops with a clear line
and ``--resume`` completes it. A run in which every reply came, at once or after resuming, has the
weights and private models of an undisturbed one, bit for bit. No client loses its private model.
"""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.flower.supernode import SIGNED_OFF
from deploy.report.table import markdown
from server_app.storage.checkpoint import Checkpoint
from tests.bench import faults
from tests.support import namespaces
from tests.support.commandline import fedmosaic
from tests.support.faults import (
    CLIENT_APP,
    CLIENTS,
    NODE,
    SERVER_APP,
    Launched,
    Machines,
    private_models,
    processes,
    record,
    settings,
    throttled,
)
from tests.support.tiny import TinyRun, play
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

networks = pytest.mark.skipif(bool(namespaces.allowed()), reason=str(namespaces.allowed()))
SAME, OTHER = "as undisturbed", "without the lost replies"
RESUMED, COMPLETED = ("--resume completes it", SAME), ("completes", SAME)
MIDWAY = 90.0
"""Seconds in which a client trains and sends 45 MB on a busy machine too."""
TIMEOUT = 45.0
"""Seconds: more than an undisturbed round takes on a busy machine, less than Flower's minute."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same run on loopback, where nothing happens."""
    return play(settings(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(scope="module")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same with two clients, for what does not need a third."""
    return play(settings(tmp_path_factory.mktemp("pair"), clients=2))


def same(run: TinyRun, reference: TinyRun, state: Path | None = None) -> None:
    """Every reply was there in the end: nothing may show what happened on the way."""
    assert run.summary["status"] == "completed"
    assert run.timeless == reference.timeless
    assert run.weights == reference.weights
    clients = len(reference.summary["clients"])
    kept = private_models(state or run.folder / "state", clients)
    assert kept == private_models(reference.folder / "state", clients)


def lost(run: TinyRun, k: int) -> list[tuple[int, str]]:
    """Round and reason of the failures, which must be client k's; all others were in every round.

    The run is complete, and every client has its private model.
    """
    assert run.summary["status"] == "completed"
    assert {failure["k"] for entry in run.journal for failure in entry["failures"]} == {k}
    for entry in run.journal[1:]:
        missed = {f["k"] for f in entry["failures"]} | set(entry["replied"])
        assert missed == set(range(CLIENTS)) and {0, 1, 2} - {k} <= set(entry["replied"])
    private_models(run.folder / "state")
    return [(f["round"], f["reason"]) for entry in run.journal for f in entry["failures"]]


def stopped(run: Launched, *said: str) -> float:
    """The launcher has ended with one line that says these things and how to go on; when."""
    status, line, seconds = run.end()
    assert status == 1
    for each in (*said, f"the checkpoint is kept, go on with --resume {run.out}"):
        assert each in line, line
    assert line.count("\n") == 0 and line.startswith("error: "), line
    return seconds


def test_the_docs_show_the_recorded_faults() -> None:
    if not faults.RECORDED.exists():
        pytest.skip("no faults are recorded: make faults")
    recorded = json.loads(faults.RECORDED.read_text())
    own = {name for name in recorded["faults"] if not name.startswith(faults.CONTAINER)}
    assert own <= set(faults.ORDER)
    assert markdown(faults.faults(recorded)) in faults.PAGE.read_text()


@pytest.mark.full
def test_a_supernode_that_signs_off_stops_the_run_and_resuming_gives_the_same_bits(
    undisturbed_pair: TinyRun, tmp_path: Path
) -> None:
    with Launched(tmp_path, clients=2) as run:
        app = run.client_app(1, 1, working=False)
        os.kill(app, signal.SIGSTOP)  # so that it cannot answer before its node is gone
        missed = len(run.journal)  # round 2, or a later one if this process had its turn late
        try:
            run.strike(processes(run.home("supernode-1"), NODE), signal.SIGTERM)
            good = f"round {missed}: 1 of 2 replies are good"
            seconds = stopped(run, good, "client 1: ", "Unavailable")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(app, signal.SIGCONT)
        same(run.resume("loopback"), undisturbed_pair)
        fault = "SuperNode ends (SIGTERM); min-replies = 1"
        seen = f"the run stops: round {missed}, client 1, Node Unavailable"
        record("supernode-sigterm", fault, seen, seconds, RESUMED)


@pytest.mark.parametrize(
    "warm",
    [pytest.param(True, marks=pytest.mark.full), pytest.param(False, marks=pytest.mark.faults)],
)
def test_a_node_that_is_stopped_at_work_says_how_to_go_on(warm: bool, tmp_path: Path) -> None:
    with Machines(tmp_path, warm=warm, size=2, rounds=100) as run:
        run.await_round(1)
        until("work", lambda: run.working(1))
        run.nodes[1].terminate()
        assert run.nodes[1].wait(PATIENCE) == 0
        until("the end of its processes", lambda: not run.pids(1))
        log = run.log("supernode-1")
    assert log.splitlines()[-1] == f"INFO :      {SIGNED_OFF}"
    for unwanted in ("Traceback", "leaked", "RpcError", "\x1b"):
        assert unwanted not in log, log


@pytest.mark.parametrize(
    ("program", "pattern", "said"),
    [
        pytest.param(
            *("ServerApp", SERVER_APP, "the ServerApp ended in the middle of the run"),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("SuperLink", "flower-superlink", "superlink was killed by SIGKILL"),
            marks=pytest.mark.faults,
        ),
    ],
)
def test_a_killed_program_is_noticed_within_seconds_and_resuming_gives_the_same_bits(
    program: str, pattern: str, said: str, undisturbed_pair: TinyRun, tmp_path: Path
) -> None:
    with Launched(tmp_path, clients=2) as run:
        run.client_app(1, 1, working=False)
        run.strike(processes(run.home("superlink"), pattern), signal.SIGKILL)
        seconds = stopped(run, said)
        same(run.resume("loopback"), undisturbed_pair)
        fault, seen = f"{program} killed (SIGKILL)", f"the launcher ends: {said}"
        record(f"{program.lower()}-sigkill", fault, seen, seconds, RESUMED)


@pytest.mark.faults
def test_a_killed_serverapp_is_resumed_by_its_line(undisturbed: TinyRun, tmp_path: Path) -> None:
    with Machines(tmp_path) as run:
        run.await_round(1)
        run.strike(processes(run.home("superlink"), SERVER_APP), signal.SIGKILL)
        assert run.submitted.wait(PATIENCE) == 1
        line = run.log("submit").splitlines()[-1]
        killed = "the ServerApp ended in the middle of the run; was its process killed?"
        assert re.match(rf"error: run \d+ stopped: {re.escape(killed)}; resume it with: ", line)
        words = shlex.split(line.partition("resume it with: ")[2])
        assert words[-1] == "--resume"
        done = fedmosaic(*words[1:], "--wait", 90)
        assert done.returncode == 0, done.stdout + done.stderr
        same(TinyRun(run.out), undisturbed)


@pytest.mark.faults
def test_a_killed_clientapp_is_a_loss_of_one_round(tmp_path: Path) -> None:
    with Launched(tmp_path, min_replies=0.5) as run:
        run.strike([run.client_app(1, 1, working=True)], signal.SIGKILL)
        seconds, failure = run.await_failure(1)
        assert lost(run.completed(), 1) == [(2, "ClientApp stopped responding.")]
        fault = "ClientApp killed (SIGKILL) at work"
        seen = f"round 2 goes on without client 1: {failure['reason']}"
        after = "completes; the client is back in round 3"
        record("clientapp-sigkill", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
def test_a_clientapp_killed_early_is_started_again(undisturbed: TinyRun, tmp_path: Path) -> None:
    with Launched(tmp_path) as run:
        run.strike([run.client_app(1, 1, working=False)], signal.SIGKILL)
        run.await_round(2)
        seconds = run.since()
        same(run.completed(), undisturbed)
        fault = "ClientApp killed (SIGKILL) while it starts"
        seen = "its SuperNode starts another after 30 s; nothing is lost"
        record("clientapp-early", fault, seen, seconds, COMPLETED)


@pytest.mark.faults
def test_a_killed_supernode_is_a_loss_in_every_round_that_follows(tmp_path: Path) -> None:
    with Launched(tmp_path, min_replies=0.5) as run:
        run.client_app(1, 1, working=True)
        run.strike(processes(run.home("supernode-1"), NODE), signal.SIGKILL)
        seconds, failure = run.await_failure(1)
        assert "Unavailable" in failure["reason"]
        assert {t for t, _ in lost(run.completed(), 1)} == {2, 3}
        fault = "SuperNode killed (SIGKILL), not started again"
        seen = "round 2 goes on without client 1: Node Unavailable"
        after = "completes; client 1 is missing in every later round"
        record("supernode-sigkill", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
def test_a_supernode_killed_while_it_sends_is_awaited_until_the_timeout(tmp_path: Path) -> None:
    big = {"method": "fedavg", "fleet": "resnet18"}  # 45 MB: sending takes a while
    with Machines(tmp_path, min_replies=0.5, timeout=MIDWAY, rounds=3, **big) as run:
        node = until("the node", lambda: processes(run.home("supernode-1"), NODE))
        run.await_round(0)
        name = Checkpoint.load(run.out / "checkpoint.safetensors").nodes[1]
        begun = f"Push replies from node_id={name}"  # said before the first part of a reply comes
        census = run.log("superlink").count(begun)
        until("the reply", lambda: "Sending: train" in run.log("supernode-1"))
        while run.log("superlink").count(begun) == census:  # it may be over in half a second
            run.check()
        run.strike(node, signal.SIGKILL)
        seconds, failure = run.await_failure(1)
        assert failure["round"] == 1
        assert failure["reason"].startswith("the reply stopped halfway, without ")
        assert [entry["replied"] for entry in run.end().journal[1:]] == [[0, 2]] * 3
        fault = f"SuperNode killed (SIGKILL) while it sends its reply; timeout {MIDWAY:g} s"
        seen = "round 1 goes on without client 1: the reply stopped halfway"
        after = "completes; client 1 is missing in every later round"
        record("supernode-midway", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
def test_a_supernode_that_is_started_again_has_its_private_model(tmp_path: Path) -> None:
    with Machines(tmp_path, min_replies=0.5, rounds=4) as run:
        run.await_round(1)
        until("work", lambda: processes(run.home("supernode-1"), CLIENT_APP))
        run.strike(processes(run.home("supernode-1"), NODE), signal.SIGTERM)
        model = private_models(run.out / "state")[1]
        run.start_node(1)
        seconds, _ = run.await_failure(1)
        result = run.end()
        rounds = {t for t, _ in lost(result, 1)}
        assert 2 in rounds and 4 not in rounds, rounds
        assert model and private_models(run.out / "state")[1] != model, "it learned on"
        fault = "SuperNode ends (SIGTERM) and is started again"
        seen = "round 2 goes on without client 1: Node Unavailable"
        after = f"completes; the client is back in round {max(rounds) + 1}"
        record("supernode-restart", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
def test_with_a_database_a_run_survives_the_superlink(undisturbed: TinyRun, tmp_path: Path) -> None:
    with Machines(tmp_path, durable=True) as run:
        run.await_round(1)
        working: set[int] = set()

        def everybody_works() -> bool:  # so the messages are delivered, not half stored
            apps = (processes(run.home(f"supernode-{k}"), CLIENT_APP) for k in range(CLIENTS))
            working.update(k for k, app in enumerate(apps) if app)
            return len(working) == CLIENTS

        until("everybody's work", everybody_works)
        run.strike({run.superlink.pid}, signal.SIGKILL)
        run.superlink.wait()
        time.sleep(3.0)
        run.start_superlink()
        run.await_round(2)
        seconds = run.since()
        same(run.end(), undisturbed)
        fault = "SuperLink killed and started again after 3 s (database, isolation process)"
        seen = "everybody connects again; nothing is lost"
        record("superlink-restart", fault, seen, seconds, COMPLETED)


@contextlib.contextmanager
def on_hosts(folder: Path, **changes: object) -> Iterator[tuple[Machines, namespaces.Host]]:
    """A federation of four hosts in namespaces, and the host of client 1."""
    with namespaces.Network() as network:
        server = network.host("server")
        clients = [network.host(f"client{k}") for k in range(CLIENTS)]
        with Machines(folder, server, clients, **changes) as run:
            yield run, clients[1]


@networks
@pytest.mark.faults
def test_a_short_cut_of_the_network_changes_nothing(undisturbed: TinyRun, tmp_path: Path) -> None:
    with on_hosts(tmp_path) as (run, host):
        run.await_round(1)
        until("work", lambda: processes(run.home("supernode-1"), CLIENT_APP))
        run.strike_by(host.cut)
        time.sleep(10.0)
        host.mend()
        run.await_round(2)
        seconds = run.since()
        same(run.end(), undisturbed)
        fault = "network of a client cut for 10 s"
        seen = "the round waits for client 1"
        record("network-10s", fault, seen, seconds, COMPLETED)


@networks
@pytest.mark.faults
def test_a_long_cut_of_the_network_is_a_loss_until_it_is_mended(tmp_path: Path) -> None:
    with on_hosts(tmp_path, min_replies=0.5, rounds=14) as (run, host):
        run.await_round(1)
        until("work", lambda: processes(run.home("supernode-1"), CLIENT_APP))
        run.strike_by(host.cut)
        seconds, failure = run.await_failure(1)
        assert "Unavailable" in failure["reason"]
        time.sleep(max(0.0, 90.0 - run.since()))
        host.mend()
        rounds = {t for t, _ in lost(run.end(), 1)}
        last = max(rounds)
        assert min(rounds) == 2 and last < 14, rounds
        fault = "network of a client cut for 90 s"
        seen = "round 2 goes on without client 1: Node Unavailable"
        mended = f"{back_after(run, last, 90.0)} s after the cut was mended"
        after = f"completes; the client is back in round {last + 1}, {mended}"
        record("network-90s", fault, seen, seconds, (after, OTHER))


def back_after(run: Machines, last: int, fault: float) -> int:
    """Seconds from the end of the fault to that of the first round without a loss."""
    total = sum(entry["seconds"]["total"] for entry in run.journal[2 : last + 2])
    return round(max(0.0, total - fault))


def may_mount(folder: Path) -> bool:
    """Whether this user may mount a small disk there; it stays mounted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=36k", "small", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.faults
def test_a_clients_full_disk_loses_no_private_model(undisturbed: TinyRun, tmp_path: Path) -> None:
    disk = tmp_path / "out" / "state" / "faults" / "1"
    if not may_mount(disk):
        pytest.skip("a small disk cannot be mounted here: only root may")
    try:
        with Launched(tmp_path) as run:
            run.await_round(1)
            (kept,) = disk.glob("1/*")
            model = kept.read_bytes()
            run.strike_by(lambda: None)  # it is full as it is
            said = f"client 1: Damaged: state-dir {run.out / 'state'} cannot be written"
            seconds = stopped(run, "round 2: 2 of 3", said, "No space left on device")
            assert [path for path in disk.rglob("*") if path.is_file()] == [kept]
            assert kept.read_bytes() == model
            subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
            same(run.resume("grpc"), undisturbed)
            fault = "disk of a client full"
            why = "cannot be written: No space left on device"
            seen = f"the run stops: round 2, client 1, state-dir … {why}"
            after = "once there is space, --resume completes it"
            record("disk-full", fault, seen, seconds, (after, SAME))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.faults
def test_a_client_slower_than_the_timeout_is_a_loss_until_it_ends(tmp_path: Path) -> None:
    with Launched(tmp_path, min_replies=0.5, timeout=TIMEOUT, rounds=30) as run:
        slow = run.client_app(1, 1, working=True)
        run.strike_by(lambda: None)
        with throttled(slow, 0.005):
            seconds, failure = run.await_failure(1)
            assert failure["reason"] == f"no reply within {TIMEOUT:g} s"
            time.sleep(max(0.0, 10 * TIMEOUT - run.since()))
            assert Path(f"/proc/{slow}").exists(), "it was not slow enough"
        found = lost(run.completed(), 1)
        last = max(t for t, _ in found)
        assert found[0][0] == 2 and last < 30
        assert {reason for _, reason in found} == {f"no reply within {TIMEOUT:g} s"}
        fault = f"client slower than the timeout ({TIMEOUT:g} s) by ten times"
        seen = f"each round goes on without client 1: no reply within {TIMEOUT:g} s"
        after = f"completes; its late reply is not used, it is back in round {last + 1}"
        record("slow", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
def test_a_clientapp_that_sleeps_and_wakes_too_late_changes_nothing(tmp_path: Path) -> None:
    """As on a computer that was suspended: its SuperNode has long given the work to another."""
    with Launched(tmp_path, min_replies=0.5, rounds=5) as run:
        asleep = run.client_app(1, 1, working=True)
        run.strike([asleep], signal.SIGSTOP)
        seconds, failure = run.await_failure(1)
        assert failure["reason"] == "ClientApp stopped responding."
        run.await_round(3)
        newest = max(int(path.name) for path in (run.out / "state" / "faults" / "1").iterdir())
        os.kill(asleep, signal.SIGCONT)
        until("its end", lambda: asleep not in processes(run.home("supernode-1"), CLIENT_APP))
        kept = {int(path.name) for path in (run.out / "state" / "faults" / "1").iterdir()}
        assert newest == 3 and max(kept) >= 3, "it has written over what came after it"
        assert lost(run.completed(), 1) == [(2, "ClientApp stopped responding.")]
        fault = "ClientApp stopped (SIGSTOP) and woken two rounds later"
        seen = f"round 2 goes on without client 1: {failure['reason']}"
        after = "completes; what the woken process has is not used"
        record("clientapp-asleep", fault, seen, seconds, (after, OTHER))


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_launcher_killed_at_any_moment_leaves_a_run_that_resumes_to_the_same_bits(
    seed: int, undisturbed: TinyRun, tmp_path: Path
) -> None:
    with Launched(tmp_path) as run:
        run.await_round(0)
        first = run.journal[0]["seconds"]["total"]
        time.sleep(random.Random(seed).uniform(0.0, 3 * first))  # rounds last about as long
        reached = len(run.journal) - 1
        run.strike({run.process.pid}, signal.SIGKILL)
        run.process.communicate()
        for home in ("superlink", *(f"supernode-{k}" for k in range(CLIENTS))):
            until("the end of all", lambda home=home: not processes(run.home(home), "fl"))
        seconds = run.since()
        same(run.resume("grpc" if seed == 1 else "loopback"), undisturbed)
        fault = f"launcher killed (SIGKILL) at random after round {reached}"
        seen = "SuperLink, SuperNodes and apps end by themselves"
        record(f"launcher-sigkill-{seed}", fault, seen, seconds, RESUMED)
