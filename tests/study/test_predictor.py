"""Models of a run, used: they predict as they were scored, on raw samples and in other programs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor

from client_app.participant import Participant
from common.parse import parse
from deploy import api
from deploy.study.predictor import SUFFIXES, Predictor
from tests.support import battery
from tests.support.commandline import completed, error_of
from tests.support.tiny import Run, TinyRun, flat, play

BY_BATCH = ("heterofl", "fedrolex", "hetfedfl", "lwn")
"""Methods whose scores in the battery have other statistics than the networks."""


def own_test(folder: Path, k: int) -> tuple[Tensor, list[str]]:
    """The raw test samples of client k of a run, and the names of their classes."""
    run = Predictor.of_client(folder, k)
    flat_config = api.experiments.load_run(folder)
    node = {"partition-id": k, "device": "cpu", "state-dir": str(folder / "state")}
    x, y = Participant(parse(flat_config), node, "test").test_set
    return x, [run.card.classes[label] for label in y.tolist()]


def share_right(run: api.Run, k: int | None, x: Tensor, names: list[str]) -> float:
    predicted = run.predict(x, client=k)
    return sum(map(str.__eq__, list(predicted), names)) / len(names)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=[pytest.mark.full] * (m not in ("fedproto", "fedper", "fml")))
        for m in battery.METHODS
        if m not in BY_BATCH
    ],
)
def test_a_client_predicts_on_raw_samples_as_it_was_scored(method: str, tmp_path: Path) -> None:
    played = play(battery.config(method, tmp_path, rounds=1))
    run = api.load(tmp_path)
    scores = {s["k"]: s["accuracy"] for s in played.journal[-1]["scores"] if s["accuracy"]}
    for k in [*scores][:2]:
        x, names = own_test(tmp_path, k)
        if method == "fedgkt" or len(x) == 0:  # it may score on the whole test set
            continue
        assert share_right(run, k, x, names) == pytest.approx(scores[k])


def test_a_client_that_never_scores_has_the_network_of_its_architecture(tmp_path: Path) -> None:
    own = {"method": "fedavg", "average__across": "same", "rounds": 1, "score__clients": 1}
    played = play(flat(tmp_path, **own))
    (scored,) = (score["k"] for score in played.journal[-1]["scores"])
    for k in {0, 1, 2, 3} - {scored}:
        spec = played.journal[0]["clients"][k]["model"]
        assert Predictor.of_client(tmp_path, k).card.architecture == spec


@pytest.mark.parametrize("method", [*BY_BATCH])
def test_a_model_without_statistics_of_its_own_is_refused(method: str, tmp_path: Path) -> None:
    play(battery.config(method, tmp_path, rounds=1))
    with pytest.raises(ValueError, match=r'^score.bn = "(batch|recalibrated)": .*; it should be'):
        api.load(tmp_path).model(client=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    folder = tmp_path_factory.mktemp("used") / "run"
    play(flat(folder, method="fedavg", rounds=1, fleet="cnn2@0.5", train__lr=0.1))
    return api.load(folder)


def test_the_servers_model_predicts_in_any_layout_of_the_same_images(trained: api.Run) -> None:
    data = api.experiments.load_run(trained.folder)
    dataset = Predictor.of_run(trained.folder, None)
    x, names = own_test(trained.folder, 0)
    expected = trained.predict(x)
    assert set(expected) <= {*dataset.card.classes} and len(expected) == len(x)
    assert trained.predict(x.numpy()[:, 0]) == trained.predict(x.permute(0, 2, 3, 1)) == expected
    assert trained.predict([Image.fromarray(image) for image in x.numpy()[:, 0]]) == expected
    chances = trained.predict(x, probabilities=True)
    assert isinstance(chances, Tensor) and torch.allclose(chances.sum(1), torch.ones(len(x)))
    normal = (x / 255 - dataset.card.mean[0]) / dataset.card.std[0]
    with torch.no_grad():
        assert torch.allclose(trained.model()(normal).softmax(1), chances, atol=1e-6)
    larger = np.repeat(np.repeat(x.numpy(), 3, 2), 3, 3)
    assert len(trained.predict(larger)) == len(x)
    assert data["method"] == "fedavg" and len(names) == len(x)


@pytest.mark.parametrize(
    ("x", "line"),
    [
        (torch.rand(2, 1, 8, 8), "x has float32 numbers; the model takes bytes, 0 to 255"),
        (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), "5"),
        (np.zeros((2, 3, 4, 5, 6), np.uint8), "it should be a shape of images"),
    ],
)
def test_other_samples_than_those_of_the_training_are_refused(
    x: Any, line: str, trained: api.Run
) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        trained.predict(x)
    assert "\n" not in str(refused.value)


def test_rows_of_a_data_frame_are_taken_by_their_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(80, 3)), columns=["age", "weight", "height"])
    frame["ill"] = np.where(frame["age"] > 0, "yes", "no")
    (tmp_path / "rows").mkdir()
    frame.to_csv(tmp_path / "rows" / "train.csv", index=False)
    own = {"data": {"name": "csv", "dir": tmp_path / "rows", "partition": "iid", "min_size": 2}}
    own["data"]["label_column"] = "ill"
    run = api.run(
        out=tmp_path / "run", method="fedavg", fleet="table-mlp2", clients=2, rounds=1, **own,
        quiet=True, workers=0,
    )  # fmt: skip
    shuffled = frame[["ill", "height", "age", "weight"]]
    assert run.predict(shuffled) == run.predict(frame[["age", "weight", "height"]].to_numpy())
    card = json.loads((run.folder / "model.json").read_text())
    assert card["columns"] == ["age", "weight", "height"] and card["classes"] == ["no", "yes"]
    with pytest.raises(ValueError, match="column 'age' is missing; there are: ill, height"):
        run.predict(shuffled.drop(columns="age"))
    with pytest.raises(ValueError, match="the model takes"):
        run.predict(np.zeros((2, 4)))


@pytest.mark.full
@pytest.mark.parametrize("form", ["safetensors", "torch-export", "onnx"])
def test_an_exported_model_gives_the_same_logits(
    form: str, trained: api.Run, tmp_path: Path
) -> None:
    completed("export", trained.folder, "--format", form, "--out", tmp_path / "model")
    used = Predictor.of_run(trained.folder, None)
    x, _ = own_test(trained.folder, 0)
    expected, path = used.logits(x), tmp_path / f"model{SUFFIXES[form]}"
    assert json.loads((tmp_path / "model.json").read_text())["shape"] == [1, 8, 8]
    if form == "safetensors":
        from safetensors.torch import load_file

        assert load_file(path).keys() == used.net.state_dict().keys()
    elif form == "torch-export":
        assert torch.equal(torch.export.load(path).module()(x), expected)
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert np.allclose(found, expected.numpy(), atol=1e-4)


def test_a_node_exports_the_model_of_its_client(tmp_path: Path) -> None:
    play(battery.config("fedper", tmp_path, rounds=1))
    (state,) = (tmp_path / "state").glob("*/1")
    of_run = Predictor.of_client(tmp_path, 1)
    weights = tmp_path / "model.safetensors"
    here = Predictor.at_node(state, weights)
    mine, same = here.net.state_dict(), of_run.net.state_dict()
    assert here.card == of_run.card and all(torch.equal(mine[name], same[name]) for name in same)
    assert "a part that the server sends" in error_of("export", state)
    completed("export", state, "--global", weights, "--out", tmp_path / "own")
    assert (tmp_path / "own.json").exists()
    assert "give no --client" in error_of("export", state, "--client", 1)
    with pytest.raises(ValueError, match="has no state of a client with its run.json"):
        Predictor.at_node(tmp_path)


def test_a_mistake_with_an_export_is_one_line(trained: api.Run, tmp_path: Path) -> None:
    folder = trained.folder
    for arguments, line in (
        (("--client", 9), "client = 9 is not allowed; it should be 0 to 3"),
        (("--format", "pt"), "--format pt is not allowed; allowed: safetensors, merged, peft, to"),
        (("--best",), "has no best.safetensors: the run had no score.keep-best = true"),
        (("--best", "--client", 0), "best is for the server's model"),
        (("--global", folder / "model.safetensors"), "--global is for the folder of a client's"),
    ):
        assert line in error_of("export", folder, *arguments)
    (folder / "checkpoint.safetensors").rename(tmp_path / "gone")
    assert "tables, sweeps and boards delete both" in error_of("export", folder, "--client", 0)
    (tmp_path / "gone").rename(folder / "checkpoint.safetensors")


def test_the_model_of_the_best_round_is_kept(run: Run, tmp_path: Path) -> None:
    keeping = {"method": "fedavg", "score__keep_best": True, "train__lr": 0.3, "rounds": 4}
    played = run(**keeping)
    scores = [entry["accuracy"] for entry in played.journal[1:]]
    best = 1 + scores.index(max(scores))
    assert played.folder.joinpath("best.safetensors").exists()
    short = play(flat(tmp_path / "short", **{**keeping, "rounds": best}))
    kept = Predictor.of_run(played.folder, None, best=True).net.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in short.model.items())


def test_the_best_round_is_refused_where_the_server_has_no_model(run: Run) -> None:
    with pytest.raises(Exception, match=r"score.keep-best = true is not allowed with method = \"f"):
        run(method="fedproto", feature_dim=16, score__keep_best=True)


def test_a_run_that_goes_on_keeps_a_better_round_alone(run: Run) -> None:
    keeping = {"method": "fedavg", "score__keep_best": True, "rounds": 2}
    first = run(**keeping)
    stamp = (first.folder / "best.safetensors").stat().st_mtime_ns
    resumed = play(
        flat(first.folder, **{**keeping, "rounds": 4, "resume": True, "train__lr": 0.05})
    )
    scores = [entry["accuracy"] for entry in TinyRun(resumed.folder).journal[1:]]
    changed = (first.folder / "best.safetensors").stat().st_mtime_ns != stamp
    assert changed == (max(scores[2:]) > max(scores[:2]))
