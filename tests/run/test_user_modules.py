"""Modules beside an experiment file: found, never in the place of others, and found again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.parse import to_toml
from common.settings.version import ROOT
from deploy import user_modules
from deploy.settings import DEFAULT, read, resolve
from tests.support.battery import EXAMPLE, PLUGIN
from tests.support.commandline import completed, error_of, fedmosaic
from tests.support.own_modules import ONE_MODULE, experiment, module, new_name, package
from tests.support.tiny import TinyRun
from tests.support.waiting import PATIENCE

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


# A user's folder with a method, networks, data and a partition, whoever calls.
KEYWORDS = """dict(method="lab:halfway", fleet=["lab.nets:Shallow", "cnn2@0.5"], clients=4,
    rounds=1, global_model="lab.nets:Shallow", quiet=True, workers=0, train={"lr": 0.05},
    data={"name": "lab.data:stripes", "partition": "lab.data:shuffled"}, halfway={"step": 0.8})"""
CALLS = {
    "the experiment file": "fedmosaic.run('experiment.toml', out='own', rounds=1, workers=0)",
    "a method's setting": "fedmosaic.run('experiment.toml', out='own', rounds=1, workers=0, "
    "halfway={'step': 0.8})",
    "keywords alone": f"fedmosaic.run(out='own', **{KEYWORDS})",
}
SPACE = {"space": {"halfway.step": [0.8]}, "seeds": [1]}


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, the current one, with its experiment file."""
    folder = tmp_path / "users"
    shutil.copytree(PLUGIN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    return folder


def script(text: str) -> str:
    """What a script in the current folder prints."""
    Path("script.py").write_text(f"import fedmosaic\n{text}")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "deploy")}
    line = [sys.executable, "script.py"]
    ran = subprocess.run(line, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture
def by_command(users: Path) -> TinyRun:
    completed("run", "experiment.toml", "--out", "cli", "--workers", 0, "-s", "rounds=1")
    return TinyRun(users / "cli")


@pytest.mark.full
@pytest.mark.parametrize("call", CALLS)
def test_python_finds_a_users_folder_as_the_command_line_does(
    call: str, by_command: TinyRun, users: Path
) -> None:
    script(CALLS[call])
    assert TinyRun(users / "own").weights == by_command.weights
    moved = shutil.move(users / "own", users.parent / "moved")
    shutil.rmtree(users / "lab")
    os.chdir(users.parent)
    completed("run", "--resume", moved, "--workers", 0, "-s", "rounds=2", "-s", "halfway.step=0.8")
    assert "(allowed to change" not in error_of("run", "--resume", moved, "-s", "halfway.step=0.1")


@pytest.mark.full
def test_a_notebook_finds_a_users_folder(by_command: TinyRun, users: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cell = nbformat.v4.new_code_cell(f"import fedmosaic\n{CALLS['keywords alone']}")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    place = {"metadata": {"path": str(users)}}
    env = {**os.environ, "PYTHONPATH": str(ROOT / "deploy")}
    NotebookClient(notebook, timeout=PATIENCE, resources=place).execute(env=env)
    assert TinyRun(users / "own").weights == by_command.weights


@pytest.mark.full
def test_a_table_and_a_sweep_find_a_users_folder_and_so_does_what_is_chosen(users: Path) -> None:
    experiment = Path("experiment.toml").read_text().replace("rounds = 3", "rounds = 1")
    keys, _, tables = experiment.partition("[data]")
    base = f"[base]\n{keys}\n[base.data]\nvalidation = 0.2\n{tables.split('[halfway]')[0]}"
    base = base.replace("[train]", "[base.train]")
    Path("rates.toml").write_text(f"seeds = [1]\n{base}\n[space.halfway]\nstep = [0.5, 0.8]\n")
    completed("sweep", "rates.toml", "--out", "swept", "--jobs", 1)
    completed("table", "swept/rates.toml", "--out", "again")
    shutil.rmtree(users / "lab")
    completed("run", "swept/chosen.toml", "--out", "best", "--workers", 0)
    assert TinyRun(users / "best").summary["method"] == EXAMPLE


@pytest.mark.full
def test_an_older_run_is_loaded_and_resumed_beside_newer_modules_of_its_name(
    by_command: TinyRun, users: Path
) -> None:
    shutil.copytree("cli", "straight")
    completed("run", "--resume", "straight", "-s", "rounds=2", "--workers", 0)
    with Path("lab/nets.py").open("a") as nets:
        nets.write("\n\nclass Shallow:\n    new = True\n")
    printed = script(
        "import lab.nets, torch\nrun = fedmosaic.load('cli')\nmodel = run.model()\n"
        "print(model(torch.zeros(2, 1, 8, 8)).shape, lab.nets.Shallow.new)\n"
        "print(fedmosaic.run(resume='cli', rounds=2, workers=0, quiet=True).accuracy is not None)"
    )
    assert printed == "torch.Size([2, 3]) True\nTrue\n"
    assert TinyRun(users / "cli").weights == TinyRun(users / "straight").weights


# Settings that nothing reads.
@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ("fedproto", "finetune.epochs", 2),
        ("fedproto", "average.across", "same"),
        ("lab:halfway", "noise.batches", 3),
        ("fedavg", "fedprox.mu", 0.5),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(
    method: str, key: str, value: int | float | str, tmp_path: Path
) -> None:
    line = rf"{key} = {value!r} is not allowed with method = '{method}', which does not read it"
    chosen = [f"method={method}", f"plugins={PLUGIN}"]
    with pytest.raises(ValueError, match=f"^{line}; methods that do: "):
        resolve(None, [*chosen, f"{key}={value}"])
    with pytest.raises(ValueError, match=f"^{line}; methods that do: "):
        read(None, given={"method": method, "plugins": str(PLUGIN), key: value}).resolve()
    assert resolve(None, [*chosen, f"{key}={resolve(None)[key]}"])["method"] == method
    (file := tmp_path / "own.toml").write_text(to_toml({"method": method, key: value}))
    if key == "fedprox.mu":  # the file has a table for another method, which -s can choose
        assert resolve(file, chosen)["method"] == method
    else:
        with pytest.raises(ValueError, match=f"^{file}: {line}"):
            resolve(file, chosen[1:])
