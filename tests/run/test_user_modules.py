"""Modules beside an experiment file: found, never in the place of others, and found again."""

import shutil
import sys
from pathlib import Path

import pytest

from deploy import user_modules
from deploy.settings import DEFAULT, resolve
from tests.support.battery import EXAMPLE, PLUGIN
from tests.support.commandline import completed, error_of, fedmosaic
from tests.support.own_modules import ONE_MODULE, experiment, module, new_name, package
from tests.support.tiny import TinyRun

Folders = tuple[Path, Path]


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.fixture
def run_with_modules(tmp_path: Path) -> Folders:
    """An experiment's folder with modules, and the run's folder with their copies."""
    folder, first = tmp_path / "mine", tmp_path / "first"
    folder.mkdir()
    root = package(folder, {"factor": "from {root}help import ONE\n" + ONE_MODULE})
    (folder / f"{root}help.py").write_text("ONE = 1\n")
    (folder / root / "numbers.txt").write_text("1 2 3\n")
    file = experiment(folder, f"{root}:factor")
    completed("run", file, "--out", first, "--workers", 0, "-s", "factor.factor=2")
    copies = first / "plugins"
    kept = {path.relative_to(copies).as_posix() for path in copies.rglob("*")}
    assert kept == {root, f"{root}/factor.py", f"{root}/numbers.txt", f"{root}help.py"}
    return folder, first


def test_a_run_with_modules_is_repeated(run_with_modules: Folders, tmp_path: Path) -> None:
    (_, first), second = run_with_modules, tmp_path / "second"
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    completed("run", first / "config.toml", "--out", second, "--workers", 0)
    assert TinyRun(second).weights == TinyRun(first).weights
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before


@pytest.mark.full
def test_a_run_finds_its_modules_again_when_the_originals_are_gone(
    run_with_modules: Folders, tmp_path: Path
) -> None:
    folder, first = run_with_modules
    shutil.rmtree(folder)
    moved = first.rename(tmp_path / "moved")
    longer = fedmosaic("run", "--resume", moved, "-s", "rounds=2", "--workers", 0)
    assert longer.returncode == 0, longer.stderr
    assert TinyRun(moved).summary["rounds"] == 2


def test_modules_are_looked_for_in_the_current_folder_where_no_file_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package(tmp_path, {"factor": ONE_MODULE})
    monkeypatch.chdir(tmp_path)
    for file in (None, DEFAULT, Path("default")):
        given = resolve(file, [f"method={name}:factor", "factor.factor=3"])
        assert given["factor.factor"] == 3.0 and given["plugins"] == str(tmp_path)
    assert resolve(None, ["method=fedavg"])["plugins"] == ""


def test_the_folder_can_be_named_and_one_called_plugins_is_in_nobodys_way(tmp_path: Path) -> None:
    name = package(tmp_path, {"factor": ONE_MODULE})
    (tmp_path / "plugins").mkdir()
    named = resolve(None, [f"method={name}:factor", f"plugins={tmp_path}"])
    for given in (named, resolve(experiment(tmp_path, f"{name}:factor"))):
        assert given["plugins"] == str(tmp_path) and list(
            user_modules.UserModules.of(given).places
        ) == [name]


def test_a_file_with_a_plugins_table_runs_with_another_method_too(tmp_path: Path) -> None:
    file = PLUGIN / "experiment.toml"
    assert resolve(file)["halfway.step"] == 0.8 and resolve(file)["halfway.smoothing"] == 0.1
    other = resolve(file, ["method=fedavg"])
    assert "halfway.step" not in other and other["data.name"] == "lab.data:stripes"


def test_nothing_beside_an_experiment_takes_the_place_of_an_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("1 / 0\n")
    assert user_modules.look_in(tmp_path, {"method": f"{module(tmp_path, 'import colorsys')}:x"})
    assert sys.path[-1] == str(tmp_path)
    sys.modules.pop("colorsys", None)
    import colorsys

    assert colorsys.__file__ and not colorsys.__file__.startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["numpy", "yaml"])
def test_a_module_named_as_an_installed_one_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("x = 3\n")
    with pytest.raises(ValueError, match=rf"/{name}\.py has the name of .*, which Python imports"):
        resolve(None, [f"plugins={tmp_path}", f"data.name={name}:x"])
    user = module(tmp_path, f"import {name}\nx = 3\n")
    given = {"plugins": str(tmp_path), "data.name": f"{user}:x"}
    with pytest.raises(ValueError, match=rf"/{name}\.py has the name of"):
        user_modules.UserModules.of(given)


def test_an_imported_module_of_another_folder_is_not_taken_for_this_one(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    name = package(tmp_path / "one", {"factor": ONE_MODULE})
    shutil.copytree(tmp_path / "one" / name, tmp_path / "other" / name)
    for folder in ("one", "other"):  # a copy is welcome
        resolve(None, [f"plugins={tmp_path / folder}", f"method={name}:factor"])
    (tmp_path / "other" / name / "more.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="which Python imports instead: start a new process"):
        resolve(None, [f"plugins={tmp_path / 'other'}", f"method={name}:factor"])


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (f"method={new_name()}:x", "error: method 'own"),
        ("plugins=/nowhere", "plugins = '/nowhere' is not a folder"),
        ("fleet=lab.nets:Shallow@0.5", "lab.nets:Shallow has no width factor"),
        ("data.name=lab.nets:Shallow", "data set 'lab.nets:Shallow' cannot be made: TypeError"),
        ("global-model=lab.data:stripes", "model 'lab.data:stripes': it makes a value of type"),
    ],
)
def test_a_mistake_with_a_plugin_is_one_line(setting: str, line: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    error = error_of("run", PLUGIN / "experiment.toml", "--out", out, "-s", setting)
    assert not out.exists() and line in error


def test_a_plugins_settings_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(PLUGIN)
    assert "halfway.smoothing" in completed("list", "settings", EXAMPLE).stdout
