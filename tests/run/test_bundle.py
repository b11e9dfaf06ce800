"""What is in the wheel, in Flower's bundle, and in the app for plain ``flwr run``."""

import io
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from common.extras import EXTRAS, missing
from common.parse import parse
from common.settings.section import Value
from common.settings.version import ROOT, VERSION
from deploy.flower.bundle import built, plugin_notes
from deploy.settings import flatten, resolve
from deploy.user_modules import UserModules
from tests.support.battery import EXAMPLE, PLUGIN
from tests.support.commandline import completed, error_of
from tests.support.own_modules import module, package

TWO_FILES = {"__init__": "", "data": "def x(): ..."}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


def notes(folder: Path, name: str, *, bundled: bool = True) -> list[str]:
    flat: dict[str, Value] = {"plugins": str(folder), "data.name": f"{name}:x"}
    return plugin_notes(flat, UserModules.of(flat), bundled=bundled)


def test_what_the_bundle_does_not_take_is_told(tmp_path: Path) -> None:
    name = package(tmp_path, TWO_FILES)
    assert notes(tmp_path, name) == []
    for file in ("images.npz", "test_data.py", "notes.md", "words.csv"):
        (tmp_path / name / file).write_text("1\n")
    (line,) = notes(tmp_path, name)
    left = ", ".join(f"{name}/{file}" for file in ("images.npz", "test_data.py", "words.csv"))
    assert line.startswith(f"not in the bundle, so not at the clients: {left}; Flower takes .json")
    here = notes(tmp_path, name, bundled=False)
    assert here == [], "on loopback nothing travels"


def test_a_bundle_that_is_too_large_or_leaves_the_module_out_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "data.py").write_text("def x(): ...\n")
    with pytest.raises(ValueError, match=r"module 'parts' cannot be sent .* nothing of parts"):
        notes(tmp_path, "parts.data")
    name = module(tmp_path, "def x(): ...\n")
    monkeypatch.setattr("flwr.cli.build.FAB_MAX_SIZE", 1000)
    with pytest.raises(ValueError, match="modules cannot be sent .* exceeds .* 1,000 bytes"):
        notes(tmp_path, name)


def test_the_written_app_is_a_flower_app_with_the_files_settings(tmp_path: Path) -> None:
    file, app = PLUGIN / "experiment.toml", tmp_path / "my-app"
    done = completed("app", app, file, "-s", "halfway.smoothing=0.3", "-s", "train.lr=0.2")
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
        assert said in error_of("app", place, file)
    assert not (tmp_path / "my_app").exists()


def test_every_package_of_the_app_is_in_the_wheel_below_one_name() -> None:
    found = {"fedmosaic", "fedmosaic.app"}
    for top in ("common", "server_app", "client_app", "deploy"):
        for path in (ROOT / top).rglob("__init__.py"):
            found.add("fedmosaic.app." + ".".join(path.parent.relative_to(ROOT).parts))
    assert sorted(SETUPTOOLS["packages"]) == sorted(found - {"fedmosaic.app.deploy.fedmosaic"})
    assert SETUPTOOLS["package-dir"] == {"fedmosaic": "deploy/fedmosaic", "fedmosaic.app": "."}


def test_every_file_that_the_program_reads_is_in_the_wheel() -> None:
    data = SETUPTOOLS["package-data"]
    patterns = [f"deploy/{each}" for each in data["fedmosaic.app.deploy"]] + data["fedmosaic.app"]
    packed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    beside = {".css", ".jinja", ".mplstyle", ".toml"}
    files = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in beside]
    needed = [path for path in files if "docker" not in path.parts]
    needed = [p for p in needed if "results" not in p.parts]
    for name in ("cells.jsonl", "canaries.json"):  # for the claims
        needed += (ROOT / "deploy" / "experiments" / "results").glob(f"*/{name}")
    assert {ROOT / "pyproject.toml", *needed} <= packed


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()
    assert "all" in extras and "dev" in extras
    line = missing(ModuleNotFoundError("No module named 'sklearn'", name="sklearn.datasets"))
    assert line == "sklearn is not installed here, and this needs it: pip install 'fedmosaic[sim]'"
    assert missing(ModuleNotFoundError("No module named 'x'", name="x")) == "No module named 'x'"


def test_the_version_and_the_licence_are_the_projects() -> None:
    assert PROJECT["version"] == VERSION and re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert "Apache License" in (ROOT / PROJECT["license-files"][0]).read_text()
