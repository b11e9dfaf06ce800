"""One run at a time writes to a folder, and its end is seen however it comes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.run import launch
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from server_app.storage.lock import held, hold
from tests.support.waiting import PATIENCE

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
    finished = launch._finished(tmp_path, started)
    assert not finished(), "it has not begun yet"
    with hold(tmp_path):
        assert not finished()
    with pytest.raises(Stopped, match="the ServerApp ended in the middle of the run"):
        finished()
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    assert finished()


def test_what_ends_a_run_before_its_time_says_how_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as plain, launch._with_remedy(tmp_path, 0.0):
        raise RuntimeError("superlink was killed\nlog")
    assert str(plain.value) == "superlink was killed\nlog"
    checkpoint.path_in(tmp_path).touch()
    with pytest.raises(RuntimeError) as told, launch._with_remedy(tmp_path, 0.0):
        raise RuntimeError("superlink was killed\nlog")
    line, log = str(told.value).splitlines()
    assert line.endswith(f"; the checkpoint is kept, go on with --resume {tmp_path}")
    assert log == "log"
