"""``import fedmosaic``: runs from Python, in a script and in a notebook."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.exchange.model_file import digest
from common.settings.version import ROOT
from deploy import api
from deploy.study.records import fingerprint
from tests.support.tiny import Run, TinyRun
from tests.support.waiting import PATIENCE

PACKAGE = {"PYTHONPATH": str(ROOT / "deploy")}
"""Where ``fedmosaic`` is found, as in an editable installation."""
SHARED = {"data": {"name": "toy", "min_size": 2}, "train": {"epochs": 1}, "clients": 2, "rounds": 2}
SHARED |= {"quiet": True}
ALIKE = {**SHARED, "method": "fedavg", "fleet": "mlp,mlp", "global_model": "mlp"}


def python(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a script prints that ``source`` is, run in ``folder``."""
    (folder / "script.py").write_text(source)
    line, env = [sys.executable, "script.py"], {**os.environ, **PACKAGE}
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    out = tmp_path_factory.mktemp("api") / "run"
    own = {"fleet": ["mlp", "cnn2@0.5"], "noise": {"batches": 2}}
    return api.run(method="fedorion", out=out, workers=0, **own, **SHARED)


@pytest.mark.full
def test_a_run_is_an_object_with_tables_and_a_model(done: api.Run) -> None:
    record = TinyRun(done.folder)
    assert done.finished and done.accuracy == record.summary["accuracy"]["final"]
    assert done.config["noise.batches"] == 2 and done.config["fleet"] == "mlp,cnn2@0.5"
    assert list(done.journal.index) == [1, 2]
    assert done.journal["accuracy"].iloc[-1] == done.accuracy
    assert (done.journal[["bytes_up", "bytes_down", "seconds_total"]] > 0).all(axis=None)
    assert list(done.clients["model"]) == ["mlp", "cnn2@0.5"]
    assert done.clients["accuracy"].between(0, 1).all()
    model = done.model()
    assert not model.training and model(torch.zeros(3, 1, 8, 8)).shape == (3, 3)
    assert digest(dict(model.state_dict())) == record.weights
    assert done.report() == done.folder / "report.html" and done.report().exists()
    assert repr(done).startswith("<Run fedorion: accuracy")


@pytest.mark.parametrize(
    "settings",
    [{"method": "fedproto", "feature_dim": 16}, {"method": "fedavg", "average__across": "same"}],
    ids=lambda settings: settings["method"],
)
def test_a_file_that_is_not_one_network_is_refused(settings: dict[str, Any], played: Run) -> None:
    run = api.load(played(**settings).folder)
    with pytest.raises(ValueError, match=r"^.*model.safetensors, as one network .*$"):
        run.model()


def test_a_run_is_opened_again_compared_and_gone_on_with(done: api.Run, tmp_path: Path) -> None:
    again = api.load(str(done.folder))
    assert again.summary == done.summary and [e.round for e in again.entries] == [0, 1, 2]
    threads = torch.get_num_threads()
    other = api.run(out=tmp_path / "other", workers=0, **ALIKE)
    assert torch.get_num_threads() == threads
    page = tmp_path / "page.html"
    frame = api.compare([done, other.folder], page)
    assert "fedavg" in page.read_text() and "fedorion" in page.read_text()
    assert list(frame.index) == ["fedorion", "fedavg"]
    assert list(frame["final"]) == [done.accuracy, other.accuracy]
    assert list(frame["fleet"]) == ["mlp,cnn2@0.5", "mlp,mlp"] and list(frame["rounds"]) == [2, 2]
    with pytest.raises(ValueError, match="given twice; compare different runs"):
        api.compare([done, done.folder])
    longer = api.run(resume=other.folder, rounds=3, workers=0, quiet=True)
    assert longer.folder == other.folder and list(longer.journal.index) == [1, 2, 3]


def test_name_and_labels_are_shown_and_decide_no_result(done: api.Run, tmp_path: Path) -> None:
    named = {"name": "ours", "labels": ["study=a", "data=skewed"]}
    given = {"method": "fedavg", "fleet": ["mlp"], **named}
    other = api.run(out=tmp_path / "a", workers=0, **SHARED, **given)
    assert other.config["labels"] == "study=a,data=skewed"
    frame = api.compare([done, other])
    assert list(frame.index) == ["fedorion", "ours"]
    assert frame["label.data"].to_list()[1] == "skewed" and frame["method"].iloc[1] == "fedavg"
    text = other.report().read_text()
    assert "<h1>ours on toy" in text and "fedavg" in text and "study: a" in text
    assert repr(other).startswith("<Run ours: ")
    same = {"seed": 1, "rounds": 6}
    assert fingerprint({**same, **named}) == fingerprint(same)
    with pytest.raises(ValueError, match=r'^labels = "group" is not allowed'):
        api.run(out=tmp_path / "b", labels="group")


def test_settings_are_keyword_arguments() -> None:
    given = {"dl_sh": {"balance": "plain"}, "fleet": ("a", "b"), "data": {"dir": Path("x")}}
    assert api._flat(given) == {"dl-sh.balance": "plain", "fleet": "a,b", "data.dir": "x"}
    told = api.settings("fedprox")["fedprox.mu"]
    assert (told.default, told.allowed) == (0.01, "≥ 0") and "proximal" in told.meaning
    assert "fedkf.temperature" not in api.settings("fedprox")
    assert api.settings().keys() > api.settings("fedprox").keys()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"rouns": 2}, "key 'rouns' is unknown; did you mean 'rounds'"),
        ({"data": {"alpa": 1}}, "did you mean 'data.alpha'"),
        ({"method": "fedag"}, 'method = "fedag" is unknown'),
        ({"rounds": [1, 2]}, 'rounds = "1,2" is not allowed'),
        ({"train": {"lr": None}}, "train.lr = None is not allowed"),
        ({"runtime": "mpi"}, "mpi is unknown; allowed: loopback, ray, grpc"),
        ({"experiment": "nosuchfile"}, "experiment file nosuchfile does not exist"),
        ({"resume": "nowhere"}, "no config.toml there"),
        ({"resume": "nowhere", "out": "x"}, "give no experiment or out"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    settings: dict[str, object], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=line) as raised:
        api.run(**settings)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value) and list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not a directory"):
        api.load("nowhere")


def test_a_foreign_package_of_the_same_name_is_never_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("mine = True\n")
    ran = python("import fedmosaic, common; print(hasattr(common, 'mine'))", tmp_path)
    assert ran.stdout == "False\n", ran.stderr
    ran = python("import common\nimport fedmosaic\n", tmp_path)
    last = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and last.startswith("ImportError: fedmosaic has a package 'common'")
    assert str(tmp_path / "common") in last


def test_importing_it_loads_no_torch(tmp_path: Path) -> None:
    source = "import sys, fedmosaic\nprint('torch' in sys.modules, sorted(dir(fedmosaic))[:2])"
    assert python(source, tmp_path).stdout == "False ['Run', 'Setting']\n"


@pytest.mark.full
def test_the_example_notebook_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=PATIENCE, resources=place)
    client.execute(env={**os.environ, **PACKAGE})
    assert (tmp_path / "runs" / "comparison.html").exists()
