"""A run's folder can be moved and copied; clients' state that does not fit is refused."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.parse import to_toml
from deploy.run.preflight import resumed
from deploy.run.verify import verify
from deploy.settings import load
from server_app.messaging.census import check_kept
from server_app.stopped import Stopped
from tests.support.battery import tiers
from tests.support.commandline import completed
from tests.support.halves import info
from tests.support.tiny import TinyRun, flat, play

SMALL: dict[str, Any] = {"method": "fedorion", "clients": 2, "train__epochs": 1}
SMALL |= {"score__clients_every": 1}
MOVES: dict[str, Callable[[Path], Path]] = {
    "stays": lambda run: run,
    "moved": lambda run: run.rename(run.parent / "elsewhere"),
    "renamed": lambda run: run.parent.rename(run.parents[1] / "new") / "run",
    "copied": lambda run: shutil.copytree(run, run.parent / "copy"),
}


PAIRS = [("moved", "this"), ("copied", "earlier"), ("stays", "earlier"), ("renamed", "earlier")]


def begun(folder: Path, **changes: Any) -> Path:
    """The folder of a run of two rounds."""
    return play(flat(folder, **{**SMALL, **changes})).folder


def resume(folder: Path, rounds: int = 3) -> TinyRun:
    settings, _ = resumed(folder, "", given={"rounds": rounds})
    return play(settings)


def digests(folder: Path) -> dict[Path, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same run of three rounds, which nobody moved."""
    return play(flat(tmp_path_factory.mktemp("whole"), **SMALL, rounds=3))


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("begun") / "parent/run")


@pytest.fixture
def run(two_rounds: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_rounds.parent, tmp_path / "parent") / "run"


def absolute(run: Path) -> None:
    """Make config.toml what earlier releases wrote."""
    flat = load(run / "config.toml") | {"out": str(run), "state-dir": str(run / "state")}
    (run / "config.toml").write_text(to_toml(flat))


@pytest.mark.parametrize("move", tiers(PAIRS, PAIRS[:2]), ids=" ".join)
def test_it_goes_on_where_it_lies(move: tuple[str, str], run: Path, whole: TinyRun) -> None:
    how, release = move
    if release == "earlier":
        absolute(run)
    there = MOVES[how](run)
    before = digests(run) if how == "copied" else {}
    longer = resume(there)
    assert longer.weights == whole.weights and longer.timeless == whole.timeless
    assert {path: digests(run)[path] for path in before} == before, "the original stays as it is"
    found = verify(there)
    assert all(one.path.is_relative_to(there) and one.state != "damaged" for one in found)
    assert sum(one.path.is_relative_to(there / "state/test") for one in found) > 2
    assert run == there or how == "copied" or not run.exists()


def test_no_file_of_a_run_says_where_it_lies(two_rounds: Path) -> None:
    where = str(two_rounds).encode()
    assert [path for path in digests(two_rounds) if where in path.read_bytes()] == []


def test_paths_inside_are_relative_and_others_stay_as_they_are(tmp_path: Path) -> None:
    out, state = tmp_path / "run", tmp_path / "outside"
    weights = begun(tmp_path / "first", method="fedavg", fleet="mlp") / "model.safetensors"
    out.mkdir()
    inside = weights.rename(out / "first.safetensors")
    given = {"method": "fedavg", "fleet": "mlp", "weights": str(inside), "state_dir": str(state)}
    kept = load(begun(out, **given) / "config.toml")
    assert (kept["out"], kept["weights"], kept["state-dir"]) == (".", inside.name, str(state))
    assert resume(out.rename(tmp_path / "moved")).summary["rounds"] == 3


@pytest.mark.parametrize("method", tiers(["fedorion", "fedmd", "scaffold"]))
def test_missing_state_is_refused(method: str, tmp_path: Path) -> None:
    public = {"data__public": 0.3} if method == "fedmd" else {}
    run = begun(tmp_path / "run", method=method, rounds=1, **public)
    (run / "state").rename(tmp_path / "state")
    line = r"census: client 0 \(and 1 more\) has no state of exper.* 'te"
    with pytest.raises(Stopped, match=line):
        resume(run, 2)
    shutil.copytree(tmp_path / "state", run / "state")
    assert resume(run, 2).summary["rounds"] == 2


def test_state_of_other_rounds_and_of_another_experiment_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "outside"
    run = begun(tmp_path / "run", state_dir=str(state), keep=1)
    copy = shutil.copytree(run, tmp_path / "copy")
    resume(copy, 4)
    with pytest.raises(Stopped, match=r"client 0 \(and 1 more\) has no state .* that of round 2:"):
        resume(run)  # the copy's rounds have replaced those that it needs
    assert "go on with --resume" in TinyRun(run).summary["error"]
    (state / "test").rename(state / "other")
    with pytest.raises(Stopped, match=r"has no state of experiment 'test'"):
        resume(copy, 5)


def test_clients_that_keep_nothing_need_nothing(tmp_path: Path) -> None:
    run = begun(tmp_path / "plain", method="fedavg")
    shutil.rmtree(run / "state", ignore_errors=True)
    assert resume(run).summary["rounds"] == 3


def test_a_client_may_have_newer_state_whose_reply_was_lost() -> None:
    check_kept([info(kept=4), info(k=1)], {0: 3, 2: 5}, 5)
    line = "client 1 has state of round 2 .* round 5 needs that of round 3"
    with pytest.raises(Stopped, match=line):
        check_kept([info(), info(k=1, kept=2)], {1: 3}, 5)


@pytest.mark.full
def test_a_copy_goes_on_over_grpc(whole: TinyRun, tmp_path: Path) -> None:
    given = flat(tmp_path / "x", **SMALL) | {"out": "", "state-dir": "", "experiment": "test"}
    (tmp_path / "run.toml").write_text(to_toml(given))
    run, copy = tmp_path / "run", tmp_path / "copy"
    completed("run", tmp_path / "run.toml", "--out", run, "--runtime", "grpc")
    before = digests(shutil.copytree(run, copy) and run)
    completed("run", "--resume", copy, "-s", "rounds=3")
    assert TinyRun(copy).weights == whole.weights and digests(run) == before
    assert str(run) not in completed("verify", copy).stdout
