"""Checkpoints: what cannot be resumed is refused in one line, nothing is lost, old runs go on."""

import errno
import json
import logging
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from deploy.flower.certificates import make
from deploy.run.loopback import RUN_ID, Loopback
from deploy.run.preflight import fresh, resumed
from deploy.settings import load
from server_app.app import app
from server_app.stopped import Stopped
from tests.support.battery import fail_client, tiers
from tests.support.commandline import completed, error_of
from tests.support.keys import Keyed
from tests.support.tiny import TinyRun, flat, play

SAME: dict[str, Any] = {"method": "fedavg", "node__1__model": "mlp", "score__clients_every": 1}
DEPTHS = {"fleet": "cnn2@0.5,cnn3@0.5", "per_round": 2}
UNEVEN = {"data__partition": "quantity_dirichlet"}
KEEPING: dict[str, dict[str, Any]] = {
    **{robust: {"method": "fedavg", "average__robust": robust} for robust in ("median", "clip")},
    **{
        across: {"method": "fedavg", "average__across": across, **DEPTHS}
        for across in ("layerwise", "same")
    },
    "variates": {"method": "scaffold", "average__across": "layerwise", **DEPTHS, **UNEVEN},
    "a generator": {"method": "fedkf", "fedkf__generator_at": "server", "fleet": "lenet5@0.5"}
    | {"generator__latent": 8, "generator__width": 4},
}
"""Runs whose server keeps more than one mean of weights, by what it keeps."""
ARCHIVE = Path(__file__).with_name("earlier_runs.tar.xz")
"""Runs of two rounds of earlier code. ``METHODS``: before classes and modules were renamed, with
kinds of payloads named after classes that have other names today. ``CONTINUED``: before a setting's
nature, aggregation and rounds had one mechanism each, with the third round of that code; of these
``sealed`` had keys, and goes on with other ones: a run's folder has none."""
METHODS = ("fedkf", "fedmd", "i-dl-mh", "scaffold")
CONTINUED = ("same", "depth", "width", "oca", "central", "local", "fedgen", "fedproto", "sealed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Three rounds without an interruption."""
    return play(flat(tmp_path_factory.mktemp("whole"), **SAME, rounds=3))


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(flat(tmp_path_factory.mktemp("two"), **SAME, node__0__memory_mb=30_000)).folder


@pytest.fixture
def part(two_rounds: Path, tmp_path: Path) -> Path:
    """A finished run of two rounds."""
    return shutil.copytree(two_rounds, tmp_path / "part")


def on(folder: Path, **changes: Any) -> TinyRun:
    return play(flat(folder, **{**SAME, "rounds": 3, "resume": True, **changes}))


def test_another_vocabulary_is_refused_in_one_line(tmp_path: Path) -> None:
    """The path of the words is the same; their number is, too."""
    words = tmp_path / "words.txt"
    settings = {"method": "fedavg", "fleet": "text-fast@0.25", "data__name": "grammar"}
    settings |= {"data__objective": "classes", "data__tokenizer": str(words)}
    words.write_text("a\nb\n")
    play(flat(tmp_path / "run", **settings))
    words.write_text("a\nc\n")
    with pytest.raises(Stopped, match=r"^the checkpoint is of another task .*file:\w+.* is 'tok"):
        play(flat(tmp_path / "run", **settings, resume=True, rounds=3))


def test_more_rounds_go_on(part: Path, whole: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk and a torn line, with clients on other machines."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Stopped, match=r"No space left on device; .* go on with --resume"):
            on(part)
    journal = part / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"round": 3, "accu')
    longer = on(part, node__1__device="cpu", node__2__memory_mb=20_000)
    assert longer.timeless == whole.timeless and longer.weights == whole.weights


@pytest.mark.parametrize("what", tiers(KEEPING, ("median", "same", "a generator")))
def test_whatever_a_server_keeps_a_run_goes_on_to_the_same_bits(what: str, tmp_path: Path) -> None:
    straight = play(flat(tmp_path / "straight", **KEEPING[what], rounds=3))
    play(flat(tmp_path / "part", **KEEPING[what], rounds=2))
    resumed = play(flat(tmp_path / "part", **KEEPING[what], rounds=3, resume=True))
    assert resumed.weights == straight.weights and resumed.timeless[-1] == straight.timeless[-1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train__lr": 0.5}, r"was written with train.lr = 0.05, this run has 0.5"),
        ({"seed": 9}, r"was written with seed = 1, this run has 9"),
        ({"method": "fedprox"}, r"was written with method = 'fedavg', this run has 'fedprox'"),
        ({"node__1__model": "cnn3"}, r"was written with node.1.model = 'mlp', this run has 'cnn3'"),
        ({"node__3__data_dir": "/x"}, r"was written with node.3.data-dir = None"),
        ({"data__test": "merge"}, r"was written with data.test = 'split', this run has 'merge'"),
    ],
)
def test_another_configuration_is_refused(changes: dict[str, Any], reason: str, part: Path) -> None:
    with pytest.raises(Stopped, match=reason):
        on(part, **changes)


def test_a_complete_run_that_is_resumed_stays_as_it_is(part: Path) -> None:
    before = {path: path.read_bytes() for path in part.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds a run already"):
        on(part, resume=False)
    with pytest.raises(Stopped, match="the run is complete: rounds = 2, all of them done") as told:
        on(part, rounds=2)
    assert "for more: -s rounds=N" in str(told.value) and "--resume" not in str(told.value)
    error = error_of("run", "--resume", part, "--workers", "0", "--runtime", "loopback")
    assert error == f"error: {told.value}\n"
    assert {path: path.read_bytes() for path in part.rglob("*") if path.is_file()} == before


@pytest.mark.full
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
    completed("report", folder)
    completed("run", "--resume", folder, "-s", "rounds=2", "--workers", "0")
    whole = play(flat(tmp_path / "whole", method="fedorion"))
    assert TinyRun(folder).weights == whole.weights


def test_a_checkpoint_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"has no checkpoint to resume from"):
        on(tmp_path / "empty")


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_client(patch, 0)
        with pytest.raises(Stopped, match=rf"go on with --resume {tmp_path}"):
            on(tmp_path, resume=False)
    assert TinyRun(tmp_path).summary["error"].startswith("round 1: 3 of 4 replies are good")
    assert on(tmp_path).summary["status"] == "completed"


def test_a_run_killed_before_its_summary_was_written_is_finished(part: Path) -> None:
    before = TinyRun(part)
    weights = before.weights
    (part / "summary.json").unlink()
    (part / "model.safetensors").unlink()
    mended = on(part, rounds=2)
    assert mended.summary["status"] == "completed" and mended.weights == weights
    assert mended.timeless == before.timeless and (part / "model.safetensors").exists()


def test_a_run_leaves_the_private_models_of_a_stopped_one_alone(tmp_path: Path) -> None:
    named = {"out": "", "experiment": "", "state-dir": str(tmp_path / "shared")}
    given = flat(tmp_path, method="fedorion", rounds=4) | named
    stopped, _ = fresh({**given, "rounds": 2}, "loopback", tmp_path / "stopped")
    play(stopped)
    between, _ = fresh(given, "loopback", tmp_path / "between")
    whole = play(between)
    assert play({**stopped, "rounds": 4, "resume": True}).weights == whole.weights
    assert len(list((tmp_path / "shared").iterdir())) == 2


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def losses(folder: Path) -> list[Any]:
    """Return what training gave in each round, which shows whether this CPU rounds alike."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines[1:]]


Tensors = dict[str, torch.Tensor]


def tensors(folder: Path) -> Tensors:
    """Return every tensor of the clients' states after round 3, and of the model."""
    files = sorted([*folder.rglob("state/*/*/3/*.safetensors"), *folder.glob("model.safetensors")])
    found = {path.relative_to(folder): load_file(path) for path in files}
    return {f"{path}/{name}": w for path, state in found.items() for name, w in state.items()}


@pytest.mark.parametrize("name", tiers(CONTINUED, ("width", "oca", "central", "sealed")))
def test_a_run_of_earlier_code_goes_on_as_that_code_went_on(
    name: str, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = old / name / "run"
    continued = resumed(run, "", given={"rounds": 3})[0]
    first = {"out": str(tmp_path), "state-dir": str(tmp_path / "state"), "resume": False}
    play(continued | first | {"rounds": 1})
    alike = losses(tmp_path) == losses(run)[:1]
    if name == "sealed":
        keys = make(tmp_path / "certs", [], int(continued["clients"]))
        monkeypatch.setenv("FEDMOSAIC_TRUST", str(keys.folder))
        play(continued, Keyed(continued, keys))
    else:
        play(continued)
    _check_same(tensors(run), tensors(old / name / "continued"), alike=alike)


@pytest.mark.parametrize("method", tiers(METHODS, ("i-dl-mh", "scaffold")))
def test_a_run_of_code_with_old_names_is_resumed(method: str, old: Path, tmp_path: Path) -> None:
    run, whole = old / method / "run", tmp_path / "whole"
    before = losses(run)
    continued = resumed(run, "", given={"rounds": 3})[
        0
    ]  # with defaults for settings that came later
    play(continued)
    fresh = continued | {"out": str(whole), "state-dir": str(whole / "state"), "resume": False}
    play(fresh)
    _check_same(tensors(whole), tensors(run), alike=losses(whole)[:2] == before)


def _check_same(ours: Tensors, theirs: Tensors, *, alike: bool) -> None:
    """Compare tensors by name; ``alike``: whether this CPU rounds as the archive's did."""
    assert ours.keys() == theirs.keys() and ours
    for name, value in ours.items():
        if alike:
            assert torch.equal(value, theirs[name]), name
        else:  # another CPU may round differently, which changes the last bits
            torch.testing.assert_close(value, theirs[name], rtol=1e-2, atol=1e-3)
