"""What of a user's own modules travels in Flower's bundle, and the app for plain ``flwr run``."""

import io
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from common.settings.parse import parse
from common.settings.section import Value
from deploy.flower.bundle import built, plugin_notes
from deploy.run.settings import flatten, resolve
from tests.support.battery import EXAMPLE, PLUGIN
from tests.support.commandline import typed
from tests.support.own_modules import module, package

TWO_FILES = {"__init__": "", "data": "def x(): ..."}


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


def carrying(folder: Path, name: str) -> dict[str, Value]:
    return {"plugins": str(folder), "data.name": f"{name}:x"}


def test_what_the_bundle_does_not_take_is_told(tmp_path: Path) -> None:
    name = package(tmp_path, TWO_FILES)
    assert plugin_notes(carrying(tmp_path, name), bundled=True) == []
    for file in ("images.npz", "test_data.py", "notes.md", "words.csv"):
        (tmp_path / name / file).write_text("1\n")
    (line,) = plugin_notes(carrying(tmp_path, name), bundled=True)
    left = ", ".join(f"{name}/{file}" for file in ("images.npz", "test_data.py", "words.csv"))
    assert line.startswith(f"not in the bundle, so not at the clients: {left}; Flower takes .json")
    assert plugin_notes(carrying(tmp_path, name), bundled=False) == [], (
        "on loopback nothing travels"
    )


def test_a_bundle_that_is_too_large_or_leaves_the_module_out_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "data.py").write_text("def x(): ...\n")
    with pytest.raises(ValueError, match=r"module 'parts' cannot be sent .* nothing of parts"):
        plugin_notes(carrying(tmp_path, "parts.data"), bundled=True)
    name = module(tmp_path, "def x(): ...\n")
    monkeypatch.setattr("flwr.cli.build.FAB_MAX_SIZE", 1000)
    with pytest.raises(ValueError, match="modules cannot be sent .* exceeds .* 1,000 bytes"):
        plugin_notes(carrying(tmp_path, name), bundled=True)


def test_the_written_app_is_a_flower_app_with_the_experiment_as_its_defaults(
    tmp_path: Path,
) -> None:
    file, app = PLUGIN / "experiment.toml", tmp_path / "my-app"
    done = typed("app", app, file, "-s", "halfway.smoothing=0.3", "-s", "train.lr=0.2")
    assert done.returncode == 0, done.stderr
    assert f"flwr run {app} local" in done.stdout and "num-supernodes=4" in done.stdout
    made = zipfile.ZipFile(io.BytesIO(built(app)))
    assert {"lab/halfway/client.py", "lab/nets.py", "client_app/app.py"} <= {*made.namelist()}
    written = tomllib.loads(made.read("pyproject.toml").decode())["tool"]["flwr"]["app"]["config"]
    given = resolve(file, ["halfway.smoothing=0.3", "train.lr=0.2"])
    assert flatten(written) == given | {"plugins": ""}
    assert parse(flatten(written)).run.method == EXAMPLE
    (tmp_path / "file").touch()
    for place, said in (
        (app, "it exists already and is not empty"),
        (tmp_path / "my_app", "Flower needs a folder whose name is"),
        (tmp_path / "file" / "x", f"{tmp_path / 'file'} is not a folder"),
    ):
        refused = typed("app", place, file)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
    assert not (tmp_path / "my_app").exists()
