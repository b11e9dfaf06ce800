"""What surrounds a run turns against it: memory, disk, clock, a sender that takes its time.

Either the run completes or it stops with one line, and ``--resume`` completes it with the bits of
an undisturbed run. ``make hostile`` records what happened.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from common.parse import to_toml
from tests.support.adversary import note
from tests.support.commandline import command_line, completed
from tests.support.faults import Launched, Machines, settings
from tests.support.tiny import TinyRun, play
from tests.support.waiting import PATIENCE, until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux")
pytestmark = [pytest.mark.hostile, LINUX]
SUPPORT = Path(__file__).parents[1] / "support"
TIMEOUT = 60.0
SMALL = {"method": "fedavg", "fleet": "lenet5", "min_replies": 0.5}  #: a model of 250 kB
WEIGHTS = "resumed: the weights of an undisturbed run"


def resumed(out: Path) -> TinyRun:
    completed("run", "--resume", out, "--runtime", "loopback", "--workers", 0)
    return TinyRun(out)


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
