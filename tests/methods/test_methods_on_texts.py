"""Every method on classes of texts: it learns them, or refuses them in one line with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.data import DATASETS, Source
from common.methods import names, options
from deploy.api import load as load_run
from tests.support import battery, outputs
from tests.support.tiny import play

BY_CONTRACT = {name for name in names() if options(name).no_texts or options(name).images}
BY_NETWORKS = {
    "fedgkt": "model 'text-fast@0.5' cannot be split",
    "fedin": "model 'text-fast@0.5' cannot be split",
    "heterofl": "the channels of a narrow",
    "fedrolex": "the channels of a narrow",
    "depthfl": "exits",
}
"""Methods whose networks for images have no counterpart for texts, and words of their errors."""
LEARNING = sorted({*names()} - BY_CONTRACT - BY_NETWORKS.keys())
FLEETS = {
    "fedmrl": {"global_model": "text-fast@0.25"},
    "heterofl": {"fleet": "text-transformer-1@0.5,text-transformer-1@0.25"},
    "fedrolex": {"fleet": "text-transformer-1@0.5,text-transformer-1@0.25"},
    "inclusivefl": {
        "fleet": "text-transformer-1@0.5,text-transformer-2@0.5",
        "node.1.model": "text-transformer-2@0.5",
    },
    "depthfl": {"node.1.model": "text-fast@0.5"},
    **{
        method: {"fleet": "text-fast-lora4@0.5", "global_model": "smallest"}
        for method in (*battery.OF_ONE_RANK, *battery.OF_RANKS)
    },
}


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set ``made-texts``."""
    dataset = outputs.texts()
    monkeypatch.setitem(DATASETS, "made-texts", Source(lambda _: dataset, "made"))


def settings(method: str, out: Path, **changes: Any) -> dict[str, Any]:
    """A short run of a method on texts."""
    fleet = {"fleet": "text-fast@0.5,text-lr@0.5", "global_model": "text-fast@0.5"}
    data = {"data__name": "made-texts", "data__samples": 0, "data__test_samples": 0}
    train = {"train__optimizer": "adam", "train__lr": 0.03, "train__epochs": 4}
    train |= {"scaffold__correction": "after"} if method == "scaffold" else {}
    return battery.config(
        method,
        out,
        **{**fleet, **FLEETS.get(method, {}), **data, **train, "rounds": 3, **changes},
    )


@pytest.mark.parametrize("method", battery.tiers(LEARNING))
def test_a_method_learns_texts(method: str, tmp_path: Path) -> None:
    run = play(settings(method, tmp_path))
    assert run.summary["failures"] == []
    assert run.summary["primary"]["best"] > 0.5, run.summary["primary"]


@pytest.mark.parametrize("method", sorted(BY_CONTRACT | {*BY_NETWORKS}))
def test_other_methods_refuse_texts_in_one_line(method: str, tmp_path: Path) -> None:
    why = BY_NETWORKS.get(method) or options(method).no_texts or options(method).images
    with pytest.raises(ValueError, match=why) as raised:
        play(settings(method, tmp_path))
    assert "\n" not in str(raised.value)


def test_the_report_has_texts_of_the_model_that_the_settings_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a data set with a tokenizer of its own cannot be read; the run ends all the same."""
    gpt = {"fleet": "gpt-1@0.25", "global_model": "gpt-1@0.25", "rounds": 1}
    read = {"data__name": "grammar", "data__samples": 60, "data__partition": "iid"}
    play(settings("fedavg", tmp_path / "read", **gpt, **read))
    found = json.loads((tmp_path / "read" / "predictions.json").read_text())
    assert len(found["texts"]) == 3
    assert "classes" not in json.loads(
        (tmp_path / "read" / "journal.jsonl").read_text().split("\n")[0]
    )
    for beginning, further in found["texts"]:
        assert len(beginning) == 32 and set(beginning) <= set("abcdefgh") and further
    monkeypatch.setitem(DATASETS, "own-letters", Source(lambda _: outputs.next_token(), "made"))
    for tokenizer in ("auto", "hash"):
        out = tmp_path / tokenizer
        play(settings("fedavg", out, **gpt, data__name="own-letters", data__tokenizer=tokenizer))
        assert not (out / "predictions.json").exists()


def test_a_text_is_continued_by_tokens_drawn_from_the_model(tmp_path: Path) -> None:
    gpt = {"fleet": "gpt-1@0.25", "global_model": "gpt-1@0.25", "rounds": 1}
    read = {"data__name": "grammar", "data__samples": 60, "data__partition": "iid"}
    play(settings("fedavg", tmp_path, **gpt, **read))
    run = load_run(tmp_path)
    one = run.complete("abc", tokens=20, seed=1)
    assert one.startswith("abc") and len(one) >= 4
    assert one == run.complete("abc", tokens=20, seed=1) != run.complete("abc", tokens=20, seed=2)
    for wrong, line in (
        ({"tokens": 0}, "tokens = 0, temperature = 1 is not allowed"),
        ({"temperature": -1.0}, "temperature = -1 is not allowed"),
        ({"temperature": float("nan")}, "temperature = nan is not allowed"),
    ):
        with pytest.raises(ValueError, match=line):
            run.complete("abc", **wrong)
    with pytest.raises(ValueError, match="the text is empty"):
        run.complete("")
    with pytest.raises(ValueError, match="complete continues a text"):
        run.predict(["abc"])


def test_statistics_of_the_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'data.standardize = "batch" is not allowed with texts'):
        play(settings("fedavg", tmp_path, data__standardize="batch"))
