"""A changed default changes neither an experiment of before, nor its records, nor its run."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common import parse
from common.parse import defaults, reads, to_toml
from common.settings.config import Value
from common.settings.old_defaults import BEFORE, OLD_DEFAULTS
from deploy import settings
from deploy.settings import EXPERIMENTS, chosen, flatten, load_run, resolve
from deploy.study import paper_table
from server_app.storage import checkpoint
from tests import papers
from tests.papers import noise
from tests.support.recorded_calls import refusal
from tests.support.tiny import Run, flat

FROZEN = flatten(json.loads(Path(__file__).with_name("old_defaults.json").read_text()))
"""The first default of every key."""
FILES = sorted([*EXPERIMENTS.glob("*.toml"), *papers.EXPERIMENTS.glob("*.toml")])
TABLES = [path for path in FILES if "row" in tomllib.loads(path.read_text(encoding="utf-8"))]
RUNS = sorted({*FILES} - {*TABLES})


def old_defaults(method: str = "") -> dict[str, Value]:
    return {**defaults(method), **OLD_DEFAULTS}


def test_every_changed_default_is_listed() -> None:
    today = defaults()
    assert today.keys() <= FROZEN.keys(), "add a new key and its default to old_defaults.json"
    assert {key: FROZEN[key] for key in OLD_DEFAULTS} == OLD_DEFAULTS
    same = {key for key, value in today.items() if repr(value) == repr(FROZEN[key])}
    assert today.keys() - same <= OLD_DEFAULTS.keys()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_states_its_old_defaults(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = paper_table.read(path)
    file = file.model_copy(update={"seeds": file.seeds[:1]})
    today = list(paper_table.cells(file))
    monkeypatch.setattr(paper_table, "defaults", old_defaults)
    assert [cell.flat for cell in today] == [cell.flat for cell in paper_table.cells(file)]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_an_experiment_states_old_defaults(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    today = resolve(path)
    monkeypatch.setattr(settings, "defaults", old_defaults)
    before = resolve(path)
    method = str(today["method"])
    assert {key for key in today if today[key] != before[key] and reads(method, key)} == set()


def test_a_fingerprint_has_new_defaults_only_in_tables_that_the_method_reads() -> None:
    today = defaults()
    assert chosen(old_defaults()) == {}
    fedavg = {**today, **settings.unread("fedavg"), "method": "fedavg"}
    assert chosen(fedavg) == {"method": "fedavg"}
    assert chosen(today | settings.unread("fedorion")) == {"noise.batches": 50, "noise.epochs": 1}
    assert noise._identity(today) == chosen(today | settings.unread("fedorion"))


def test_a_runs_folder_that_lacks_a_key_is_refused(tmp_path: Path) -> None:
    kept = {key: value for key, value in defaults().items() if key != "noise.epochs"}
    file = tmp_path / "config.toml"
    file.write_text(to_toml(kept | {"out": str(tmp_path)}))
    line = f"{file} lacks noise.epochs, whose default has changed since"
    assert refusal(load_run, tmp_path).startswith(line) and refusal(resolve, file).startswith(line)
    file.write_text("[noise]\nepochs = 3\n")  # an experiment file, not that of a run
    assert resolve(file)["noise.batches"] == defaults()["noise.batches"]


def test_a_checkpoint_without_a_changed_default_is_refused(played: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(played(method="fedorion").folder, tmp_path / "run")
    saved = checkpoint.load(folder)
    tables: dict[str, dict[str, Any]] = json.loads(saved.config)

    def write() -> None:
        lacking = saved.model_copy(update={"config": json.dumps(tables)})
        checkpoint.path_in(folder).write_bytes(b"".join(lacking.pieces()))

    del tables["score"]["drift"], tables["oca"]  # newer keys, whose defaults have not changed
    write()
    config = parse.parse(flat(folder, method="fedorion"))
    assert checkpoint.read(folder, config).t == saved.t
    del tables["noise"]["epochs"]
    write()
    with pytest.raises(ValueError, match=r"lacks noise.epochs, whose default has changed since"):
        checkpoint.read(folder, config)


def test_a_run_of_before_a_key_resumes_with_the_bits_of_before(tmp_path: Path) -> None:
    kept = {key: value for key, value in defaults().items() if key not in BEFORE}
    file = tmp_path / "config.toml"
    file.write_text(to_toml(kept | {"out": str(tmp_path)}))
    for found in (load_run(tmp_path), resolve(file)):
        assert {key: found[key] for key in BEFORE} == BEFORE
    assert not BEFORE.keys() & chosen(defaults()).keys()
    assert all(defaults()[key] != value for key, value in BEFORE.items())
