"""Clients that several runs have in common are trained once, and give the bits of runs apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from client_app import reuse
from client_app.node import check
from client_app.participant import Participant
from common.parse import parse
from tests.support.commandline import typed
from tests.support.recorded_calls import record_calls
from tests.support.tiny import TINY, TinyRun, flat, play

PUBLIC: dict[str, Any] = {"rounds": 1, "fleet": "mlp@0.25", "data__public": 0.4}
PUBLIC |= {"confidence__epochs": 1, "ensemble__epochs": 1}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which client has trained on its labels, training by training."""
    return record_calls(monkeypatch, Participant, "train", lambda _, p, *given, **named: p.k)


def runs(folder: Path, learnt: Path | None = None) -> list[TinyRun]:
    """Three runs whose clients learn the same, and two of others."""
    return [
        play(flat(folder / name, **PUBLIC, **changes), learnt=learnt)
        for name, changes in {
            "dl-sh": {"method": "dl-sh"},
            "odin": {"method": "dl-sh", "confidence__kind": "odin"},
            "dl-mh": {"method": "dl-mh"},
            "dense": {"method": "dense", "dense__epochs": 1, "dense__generator_steps": 1},
            "local": {"method": "local"},
        }.items()
    ]


def test_equal_training_is_done_once_and_gives_the_same_bits(tmp_path, trainings) -> None:
    apart = runs(tmp_path / "apart")
    assert trainings == 5 * [0, 1, 2, 3]
    trainings.clear()
    together = runs(tmp_path / "together", tmp_path / "learnt")
    assert trainings == 2 * [0, 1, 2, 3], "one by each client's classes, one by all classes"
    for alone, shared in zip(apart, together, strict=True):
        assert shared.timeless == alone.timeless and shared.weights == alone.weights


def test_a_damaged_or_unwritable_result_is_trained_again(tmp_path, trainings) -> None:
    folder = tmp_path / "learnt"
    first = play(flat(tmp_path / "first", method="local", rounds=1), learnt=folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    trainings.clear()
    again = play(flat(tmp_path / "again", method="local", rounds=1), learnt=folder)
    assert trainings == [0, 1, 2, 3] and again.timeless == first.timeless
    (tmp_path / "file").touch()
    full = play(flat(tmp_path / "full", method="local", rounds=1), learnt=tmp_path / "file")
    assert full.timeless == first.timeless


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "train": ({"train__batch_size": 8}, True),
    "epochs": ({"train__epochs": 3}, True),
    "seed": ({"seed": 2}, True),
    "data": ({"data__samples": 100}, True),
    "partition's seed": ({"data__seed": 5}, True),
    "precision": ({"precision": "bf16"}, True),
    "clients": ({"clients": 5}, True),
    "another client's model": ({"node__1__model": "mlp@0.5"}, False),
    "server": ({"noise__epochs": 2, "ensemble__epochs": 3, "score__every": 2}, False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_decides_the_training_is_in_the_name(what: str, tmp_path: Path) -> None:
    changes, another = CHANGES[what]

    def name(**more: Any) -> str:
        config = parse(flat(tmp_path, method="local", **more))
        p = Participant(config, {"partition-id": 0, "num-partitions": config.run.clients}, "test")
        return reuse._name(p, 1, p.model(p.spec), "all")

    assert (name(**changes) != name()) == another


def test_neither_the_run_nor_a_message_says_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="learnt-dir"):
        parse(flat(tmp_path, **{"node__0__learnt_dir": "somewhere"}))
    with pytest.raises(ValueError, match="'learnt-dir' is unknown"):
        check({"learnt-dir": "somewhere"})


@pytest.mark.full
def test_rows_of_a_table_share_their_clients(tmp_path: Path, trainings: list[int]) -> None:
    base = {**TINY, "rounds": 1, "fleet": "mlp@0.25"}
    base |= {"data.public": 0.4, "confidence.epochs": 1, "ensemble.epochs": 1}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in base.items()]
    text = ['title = "Confidences"', "seeds = [1, 2]", "[base]", *lines]
    for kind in ("classifier", "odin", "uniform"):
        settings = f'set = {{ method = "dl-sh", confidence = {{ kind = "{kind}" }} }}'
        text += ["[[row]]", f'name = "{kind}"', settings]
    (tmp_path / "table.toml").write_text("\n".join([*text, "[[column]]", 'name = "iid"']))
    done = typed("table", tmp_path / "table.toml", "--workers", 0, "--out", tmp_path / "t")
    assert done.returncode == 0, done.stderr
    assert trainings == 2 * [0, 1, 2, 3], "one for each seed, whatever the row"
    assert len(list((tmp_path / "t" / "cells").iterdir())) == 6
    assert not (tmp_path / "t" / "learnt").exists()
