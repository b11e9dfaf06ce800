"""What surrounds a run turns against it: memory, disk, clock, a sender that takes its time.

Either the run completes or it stops with one line, and ``--resume`` completes it with the bits of
an undisturbed run. ``make hostile`` records what happened.
"""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from flwr.app import Message

from common.parse import to_toml
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from server_app.storage.status_file import ServerStatus
from tests.support.adversary import note
from tests.support.commandline import command_line, completed
from tests.support.faults import (
    CLIENT_APP,
    NODE,
    SERVER_APP,
    Launched,
    Machines,
    Sealed,
    processes,
    resumed,
    settings,
)
from tests.support.tiny import TinyRun, flat, play
from tests.support.waiting import PATIENCE, until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux")
pytestmark = [pytest.mark.hostile, LINUX]
SUPPORT = Path(__file__).parents[1] / "support"
TIMEOUT = 60.0
SMALL = {"method": "fedavg", "fleet": "lenet5", "min_replies": 0.5}  #: a model of 250 kB
WEIGHTS = "resumed: the weights of an undisturbed run"


def undisturbed(folder: Path, **changes: object) -> str:
    return play(settings(folder / "undisturbed", **changes)).weights


def test_a_limit_on_memory_is_one_line(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    wide = {"method": "fedavg", "clients": 2, "fleet": "resnet34@2", "data__samples": 32}
    more = {"data__test_samples": 9, "rounds": 1, "train__epochs": 1}
    file.write_text(to_toml({**settings(out, **wide, **more), "out": "", "state-dir": ""}))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1_536_000_000,) * 2)

    line = command_line("run", file, "--runtime", "loopback", "--workers", 0, "--out", out)
    done = subprocess.run(line, capture_output=True, text=True, preexec_fn=limited)
    errors = done.stderr.strip()
    assert done.returncode == 1 and "Traceback" not in errors and "\n" not in errors
    assert "allocate memory" in errors
    subprocess.run(command_line("run", "--resume", out), check=False, capture_output=True)
    note("ulimit -v of 1.5 GB, a model of 340 MB", "stopped", errors.removeprefix("error: "))


def covered(folder: Path) -> bool:
    """Whether this user may lay a read-only disk over a folder: what is opened anew is there."""
    command = ["mount", "-t", "tmpfs", "-o", "ro", "cover", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_folder_of_results_that_becomes_read_only_loses_nothing(tmp_path: Path) -> None:
    file, out, journal = tmp_path / "run.toml", tmp_path / "out", tmp_path / "out/journal.jsonl"
    endless = {**settings(out, rounds=2000), "out": "", "state-dir": str(tmp_path / "state")}
    file.write_text(to_toml(endless))
    line = command_line("run", file, "--runtime", "loopback", "--workers", 0, "--out", out)
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **output, text=True) as running:
        until("round 1", lambda: journal.exists() and len(journal.read_text().splitlines()) > 1)
        may = covered(out)
        if not may:
            running.kill()
            pytest.skip("a disk cannot be mounted here: only root may")
        try:
            _, errors = running.communicate(timeout=PATIENCE)
        finally:
            subprocess.run(["umount", str(out)], check=True)
    said = errors.strip().splitlines()[-1]
    assert running.returncode == 1 and "Traceback" not in errors, errors
    assert "Read-only file system" in said, said
    rounds = len(journal.read_text().splitlines())
    changed = ("--runtime", "loopback", "--workers", 0, "-s", f"rounds={rounds}")
    completed("run", "--resume", out, *changed)
    assert TinyRun(out).weights == undisturbed(tmp_path, rounds=rounds)
    told = said.removeprefix("error: ").replace(str(out), "OUT")
    note("out becomes read-only in the middle", f"stopped; {WEIGHTS}", told)


def test_a_full_disk_of_the_server_loses_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(out)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk cannot be mounted here: only root may")
    try:
        endless = {**settings(out, rounds=2000), "out": "", "state-dir": str(tmp_path / "state")}
        file.write_text(to_toml(endless))
        line = command_line("run", file, "--runtime", "loopback", "--workers", 0, "--out", out)
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        journal, filler = out / "journal.jsonl", out / "filler"
        with subprocess.Popen(line, **output, text=True) as running:
            until("round 1", lambda: journal.exists() and journal.read_text().count("\n") > 1)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file_:
                while True:
                    file_.write(bytes(4096))
            _, errors = running.communicate(timeout=PATIENCE)
        said = errors.strip().splitlines()[-1]
        assert running.returncode == 1 and "Traceback" not in errors, errors
        assert "No space left on device" in said, said
        filler.unlink()
        rounds = journal.read_text().count("\n")
        changed = ("--runtime", "loopback", "--workers", 0, "-s", f"rounds={rounds}")
        completed("run", "--resume", out, *changed)
        assert TinyRun(out).weights == undisturbed(tmp_path, rounds=rounds)
    finally:
        subprocess.run(["umount", str(out)], check=True)
    told = said.removeprefix("error: ").replace(str(out), "OUT")
    note("the server's disk runs full in the middle", f"stopped; {WEIGHTS}", told)


def test_three_hundred_rounds_take_no_more_memory_than_fifty(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(to_toml({**settings(out, rounds=300), "out": "", "state-dir": ""}))
    line = command_line("run", file, "--runtime", "loopback", "--workers", 0, "--out", out)
    sizes: dict[int, int] = {}
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as running:
        process, journal = psutil.Process(running.pid), out / "journal.jsonl"

        def over() -> bool:
            rounds = journal.read_text().count("\n") - 1 if journal.exists() else 0
            with contextlib.suppress(psutil.Error):
                sizes[rounds] = max(sizes.get(rounds, 0), process.memory_info().rss)
            return running.poll() is not None

        until("the end", over)
    early, late = (max(sizes[t] for t in sizes if a <= t <= b) for a, b in ((45, 55), (285, 299)))
    assert running.returncode == 0 and late <= 1.1 * early + 4e6, sizes
    told = f"{early / 1e6:.0f} MB after 50 rounds, {late / 1e6:.0f} MB after 300"
    note("300 short rounds", "completed", told)


class Restless(Loopback):  # type: ignore[misc]
    """After the census, two of four clients are connected in every second round only."""

    rounds = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        self.rounds += any(message.metadata.message_type == "train" for message in sent)
        names: Iterable[str] = super().push_messages(sent)
        return names

    def get_node_ids(self) -> Iterable[int]:
        if not self.rounds:
            return super().get_node_ids()
        return [node for node in super().get_node_ids() if node < 3 or (self.rounds + node) % 2]


def test_clients_that_join_and_leave_all_the_time_end_no_run(tmp_path: Path) -> None:
    elastic = {"clients": 4, "method": "scaffold", "fleet": "mlp@0.25", "rounds": 40}
    usual = {"min_clients": 2, "leave_after": 1, "min_replies": 0.25, "wait": 1.0}
    run = play(flat(tmp_path / "run", **elastic, **usual), Restless)
    events = [event["kind"] for entry in run.journal for event in entry.get("events", [])]
    assert run.summary["status"] == "completed" and events.count("left") > 10, events
    again = {"membership": str(run.folder / "journal.jsonl"), "min_replies": 0.25}
    replayed = play(flat(tmp_path / "again", **elastic, **again))
    assert replayed.weights == run.weights
    line = f"{events.count('left')} times left in 40 rounds; a replay has the same weights"
    note("two of four clients join and leave all the time", "completed", line)


def test_a_forged_state_of_a_client_that_returns_is_one_line(tmp_path: Path) -> None:
    run = play(settings(tmp_path / "run", rounds=2)).folder
    mine, other = (run / f"state/faults/{k}/2/private.Memory.safetensors" for k in (1, 0))
    whole = mine.read_bytes()
    mine.write_bytes(other.read_bytes())  # with a digest that is right
    more = settings(run, rounds=3) | {"resume": True}
    with pytest.raises(Stopped, match="client 1: ValueError: weights .* do not fit") as stopped:
        play(more)
    line = str(stopped.value)
    assert "\n" not in line and f"go on with --resume {run}" in line
    mine.write_bytes(whole)
    assert play(more).weights == undisturbed(tmp_path, rounds=3)
    told = line.replace(str(run), "OUT")
    note("a client returns with the state of another one", f"stopped; {WEIGHTS}", told)


SERVER, CLIENT = "superlink", "supernode-1"
VICTIMS = {
    "ServerApp": (SERVER, SERVER_APP),
    "SuperLink": (SERVER, "flower-superlink"),
    "SuperNode": (CLIENT, NODE),
    "ClientApp": (CLIENT, CLIENT_APP),
}
PHASES = ("census", "clients", "step", "score")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_of_a_sealed_run_that_is_killed_in_any_phase_costs_at_most_a_resume(
    victim: str, phase: str, tmp_path: Path
) -> None:
    home, pattern = VICTIMS[victim]
    with Sealed(tmp_path, rounds=4) as run:

        def found() -> set[int]:
            run.check()
            here = ServerStatus.read(run.out)
            later = here.round >= (phase != "census")
            return processes(run.home(home), pattern) if here.phase == phase and later else set()

        run.strike(until(f"{victim} in the phase {phase}", found, 0.01), signal.SIGKILL)
        output, errors = run.process.communicate(timeout=PATIENCE)
        status = run.process.returncode
    assert "Traceback" not in output + errors, output + errors
    said = errors.strip().splitlines()[-1] if status else ""
    outcome, kept = "completed, undisturbed", (run.out / "checkpoint.safetensors").exists()
    if status and not kept:
        assert phase == "census"
        completed("run", tmp_path / "experiment.toml", "--runtime", "loopback", "--workers", 0)
        outcome = f"stopped; {WEIGHTS.replace('resumed', 'started again')}"
    elif status:
        assert f"the checkpoint is kept, go on with --resume {run.out}" in said, said
        resumed(run.out)
        outcome = f"stopped; {WEIGHTS}"
    assert TinyRun(run.out).weights == undisturbed(tmp_path, rounds=4)
    told = re.sub(r"\d{6,}", "…", said.removeprefix("error: ").replace(f"{tmp_path}/", ""))
    note(f"SIGKILL of the {victim} of a sealed run in the phase {phase}", outcome, told)


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_a_clock_that_jumps_costs_at_most_a_resume(
    seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jump = tmp_path / "jump"
    path = [str(SUPPORT / "clock"), str(SUPPORT.parents[1])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("JUMP", str(jump))
    with Launched(tmp_path, rounds=5, timeout=60.0) as run:
        run.await_round(2)
        jump.write_text(str(seconds))
        output, errors = run.process.communicate(timeout=PATIENCE)
        status = run.process.returncode
    assert "Traceback" not in output + errors
    said = errors.strip().partition(";")[0].removeprefix("error: ")
    if status:
        assert "--resume" in errors, errors
        jump.write_text("0")
    result = resumed(run.out) if status else TinyRun(run.out)
    assert result.weights == undisturbed(tmp_path, rounds=5)
    way = "forward" if seconds > 0 else "back"
    name = f"the clock of all machines jumps {way} by {abs(seconds) / 3600:.0f} h over gRPC"
    note(name, f"stopped; {WEIGHTS}" if status else "completed, undisturbed", said)


class Slow(Machines):
    """Client 1's SuperNode takes its time for each large part of a message."""

    def start_node(self, k: int) -> subprocess.Popen[bytes]:
        with pytest.MonkeyPatch.context() as patch:
            if k == 1:
                patch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT / "slow"), *sys.path[:1]]))
                patch.setenv("SLOW", str(2 * TIMEOUT))
            return super().start_node(k)


def test_a_slow_sender_holds_up_a_round_until_the_timeout_and_no_longer(tmp_path: Path) -> None:
    with Slow(tmp_path, rounds=1, timeout=TIMEOUT, **SMALL) as run:
        result = run.end()
    failures = [f for entry in result.journal for f in entry["failures"]]
    assert {f["k"] for f in failures} == {1} and result.journal[1]["replied"] == [0, 2]
    name = f"each part of client 1's model takes {2 * TIMEOUT:g} s, timeout {TIMEOUT:g} s"
    note(name, "completed without client 1", failures[0]["reason"])
