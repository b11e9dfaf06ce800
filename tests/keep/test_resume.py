"""Checkpoints: what cannot be resumed is refused in one line, and nothing is lost."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from deploy.run.loopback import RUN_ID, Loopback
from deploy.run.preflight import fresh
from deploy.run.settings import load
from server_app.app import app
from server_app.keep import checkpoint
from server_app.stopped import Stopped
from tests.support.commandline import typed
from tests.support.tiny import TinyRun, flat, play


def finished(folder: Path, **changes: Any) -> Path:
    play(flat(folder, method="fedavg", **changes))
    return folder


def test_more_rounds_go_on_where_the_run_ended(tmp_path: Path) -> None:
    whole = play(flat(tmp_path / "whole", method="fedavg", rounds=3, score__clients_every=1))
    part = finished(tmp_path / "part", rounds=2, score__clients_every=1)
    longer = play(flat(part, method="fedavg", rounds=3, score__clients_every=1, resume=True))
    assert longer.timeless == whole.timeless and longer.weights == whole.weights


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train__lr": 0.5}, r"was written with train.lr = 0.05, this run has 0.5"),
        ({"seed": 9}, r"was written with seed = 1, this run has 9"),
        ({"method": "fedprox"}, r"was written with"),
        ({}, r"the run is complete: rounds = 2"),
        ({"node__1__model": "cnn3"}, r"was written with node.1.model = None, this run has 'cnn3'"),
        ({"node__3__data_dir": "/x"}, r"was written with node.3.data-dir = None"),
        ({"data__test": "merge"}, r"was written with data.test = 'split', this run has 'merge'"),
    ],
)
def test_another_configuration_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    finished(tmp_path)
    with pytest.raises(Stopped, match=reason):
        play(flat(tmp_path, **{"method": "fedavg", "resume": True, **changes}))


def test_a_complete_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedavg", runtime="loopback")
    play(settings)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Stopped, match="the run is complete: rounds = 2, all of them done") as told:
        play({**settings, "resume": True})
    assert "for more: -s rounds=N" in str(told.value) and "--resume" not in str(told.value)
    typed_again = typed("run", "--resume", tmp_path, "--workers", "0")
    assert typed_again.returncode == 1
    assert typed_again.stderr == f"error: {told.value}\n"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_started_by_flower_alone_is_resumed_from_the_config_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    settings = flat(tmp_path, method="fedorion", rounds=1)
    settings |= {"clients": 0, "out": "", "state-dir": "", "experiment": ""}
    with caplog.at_level(logging.INFO, "flwr.fedmosaic"), Loopback(4, settings, workers=0) as grid:
        app(grid, Context(RUN_ID, 0, {}, RecordDict(), settings))
    folder = tmp_path / ".fedmosaic/runs/run-1"
    assert f"for its report: fedmosaic report {folder}" in caplog.text
    left = load(folder / "config.toml")
    assert (left["clients"], left["experiment"], left["out"]) == (4, "run-1", ".")
    assert left.keys() == settings.keys()
    assert typed("report", folder).returncode == 0
    more = typed("run", "--resume", folder, "-s", "rounds=2", "--workers", "0")
    assert more.returncode == 0, more.stderr
    whole = play(flat(tmp_path / "whole", method="fedorion"))
    assert TinyRun(folder).weights == whole.weights


def test_a_resumed_runs_clients_may_move(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", rounds=3, node__1__model="mlp")
    finished(tmp_path / "part", node__1__model="mlp", node__0__memory_mb=30_000)
    moved = {"node__1__model": "mlp", "node__1__device": "cpu", "node__2__memory_mb": 20_000}
    part = play(flat(tmp_path / "part", method="fedavg", rounds=3, resume=True, **moved))
    assert part.weights == TinyRun(whole).weights


def test_a_corrupt_checkpoint_is_named(tmp_path: Path) -> None:
    finished(tmp_path)
    path = checkpoint.path_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Stopped, match=r"checkpoint.safetensors cannot be read"):
        play(flat(tmp_path, method="fedavg", resume=True, rounds=3))


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"has no checkpoint to resume from"):
        play(flat(tmp_path, method="fedavg", resume=True))


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path: Path) -> None:
    finished(tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(ValueError, match="holds a run already"):
        finished(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_a_torn_last_line_of_the_journal_is_mended(tmp_path: Path) -> None:
    finished(tmp_path)
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() + '{"round": 3, "accu')
    longer = play(flat(tmp_path, method="fedavg", resume=True, rounds=3))
    assert [entry["round"] for entry in longer.journal] == [0, 1, 2, 3]


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.battery import fail_client

    with monkeypatch.context() as patch:
        fail_client(patch, 0)
        with pytest.raises(Stopped, match=rf"go on with --resume {tmp_path}"):
            finished(tmp_path)
    assert TinyRun(tmp_path).summary["error"].startswith("round 1: 3 of 4 replies are good")
    resumed = play(flat(tmp_path, method="fedavg", resume=True))
    assert resumed.summary["status"] == "completed"


def test_a_run_killed_before_its_summary_was_written_is_finished(tmp_path: Path) -> None:
    whole = TinyRun(finished(tmp_path))
    (tmp_path / "summary.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    mended = play(flat(tmp_path, method="fedavg", resume=True))
    assert mended.summary["status"] == "completed" and mended.weights == whole.weights
    assert mended.timeless == whole.timeless
    assert (tmp_path / "model.safetensors").exists()


def test_a_full_disk_of_the_server_is_one_line_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = play(flat(tmp_path / "whole", method="fedavg", rounds=3, score__clients_every=1))
    part = finished(tmp_path / "part", rounds=2, score__clients_every=1)

    longer = flat(part, method="fedavg", rounds=3, score__clients_every=1, resume=True)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Stopped, match=r"No space left on device; .* go on with --resume"):
            play(longer)
    resumed = play(longer)
    assert resumed.timeless == whole.timeless and resumed.weights == whole.weights


def test_a_run_of_the_same_settings_leaves_the_private_models_of_a_stopped_one_alone(
    tmp_path: Path,
) -> None:
    named = {"out": "", "experiment": "", "state-dir": str(tmp_path / "shared")}
    given = flat(tmp_path, method="fedorion", rounds=4) | named
    stopped, _ = fresh({**given, "rounds": 2}, "loopback", tmp_path / "stopped")
    play(stopped)
    between, _ = fresh(given, "loopback", tmp_path / "between")
    whole = play(between)
    assert play({**stopped, "rounds": 4, "resume": True}).weights == whole.weights
    assert len(list((tmp_path / "shared").iterdir())) == 2
