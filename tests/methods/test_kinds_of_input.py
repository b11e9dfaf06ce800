"""Every method on signals and on tables: it runs, or it is refused before the start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.methods import names, options
from deploy.run.preflight import preflight
from server_app.stopped import Stopped
from tests.support.battery import config, of_families, tiers
from tests.support.data_files import write_npz
from tests.support.tiny import Run, TinyRun, flat, play

ON_IMAGES = [name for name in names() if options(name).images]
FLEETS = {
    "waves": {
        "": "resnet1d-8@0.25,resnet1d-14@0.25",
        "depthfl": "resnet1d-8-exits3@0.25,resnet1d-8-exits1@0.25",
        "heterofl": "resnet1d-8@0.5,resnet1d-8@0.25-up",
        "fedrolex": "resnet1d-8@0.5,resnet1d-8@0.25-up",
        "fiarse": "resnet1d-8@0.25",
        "fml": "gru@0.25,lstm@0.25",
        "fedproto": "har-cnn@0.1,transformer1d-2@0.25",
    },
    "points": {
        "": "table-mlp2@0.25,table-mlp3@0.25",
        "depthfl": "table-mlp3-linear2,table-mlp3-linear1",
        "heterofl": "table-mlp3@0.5,table-mlp3@0.25",
        "fedrolex": "table-mlp3@0.5,table-mlp3@0.25",
        "fiarse": "table-mlp2@0.25",
    },
}
"""Fleets by data set and method; the first entry is the global model."""
LEARNING = {"data__samples": 0, "train__epochs": 5, "rounds": 3, "train__lr": 0.05}


def on_kind(method: str, data: str, out: Path) -> dict[str, Any]:
    """Return the battery's run config of a method, with networks for the data set's kind."""
    fleet = FLEETS[data].get(method, FLEETS[data][""])
    settings = config(method, out, data__name=data, fleet=fleet, global_model=fleet.split(",")[0])
    return {key: value for key, value in settings.items() if not key.startswith("node.")}


@pytest.mark.parametrize("data", FLEETS)
@pytest.mark.parametrize("method", of_families([name for name in names() if name not in ON_IMAGES]))
def test_a_method_runs_on_this_kind_of_input(method: str, data: str, tmp_path: Path) -> None:
    settings = on_kind(method, data, tmp_path / "run")
    preflight(settings)
    result = play(settings)
    assert [entry["failures"] for entry in result.journal[1:]] == [[]] * settings["rounds"]
    score = result.summary["primary"]
    assert 0 <= score["final"] <= 1
    (model,) = {str(path) for path in result.folder.glob("model.safetensors")} or {""}
    assert not model or all(v.isfinite().all() for v in result.model.values())


@pytest.mark.parametrize("data", FLEETS)
@pytest.mark.parametrize("method", ON_IMAGES)
def test_a_method_for_images_is_refused_before_the_start(method, data, tmp_path) -> None:
    with pytest.raises(ValueError, match=f'method = "{method}" takes images only: ') as refused:
        preflight(on_kind(method, data, tmp_path))
    assert options(method).images in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fedorion", {"noise__kind": "stylegan"}, "noise.kind = 'stylegan' draws images, but the"),
        ("lwn", {"noise__kind": "dead_leaves"}, "allowed: gaussian, uniform"),
        ("dense", {"dense__augment": "flip"}, 'dense.augment = "flip" is not allowed with signals'),
        ("co-boosting", {"co_boosting__pool_dtype": "uint8"}, 'allowed: "float32"'),
        ("fedavg", {"data__augment": "crop-flip"}, "data.augment = 'crop-flip' is for images"),
        ("fedavg", {"data__image_size": 16}, "signals, tables and texts cannot be resized"),
        ("fedavg", {"fleet": "cnn2"}, "model 'cnn2' takes images, but the data are signals of 3"),
        ("fedavg", {"data__public_name": "toy"}, "data.public-name = 'toy' has uint8 samples"),
    ],
)
def test_a_setting_for_images_is_refused_before_the_start(method, settings, line, tmp_path) -> None:
    base = on_kind(method, "waves", tmp_path)
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    with pytest.raises(ValueError, match=line) as refused:
        preflight({**base, **named})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "method", tiers(["fedavg", "local", "fedproto", "fml", "fd"], ("fedavg", "fedproto"))
)
def test_clients_with_mixed_networks_learn_signals(method: str, run: Run) -> None:
    fleet = "resnet1d-8@0.25" if method == "fedavg" else "resnet1d-8@0.25,resnet1d-14@0.25"
    result = run(method=method, data__name="waves", fleet=fleet, **LEARNING)
    assert result.summary["primary"]["final"] > 0.6


def test_owners_of_signals_are_clients(run: Run) -> None:
    own = {"data__partition": "natural", "data__samples": 0, "clients": 6}
    result = run(data__name="waves", method="fedavg", fleet="gru@0.25", **own)
    assert [client["n"] for client in result.journal[0]["clients"]] == [48] * 6


def equal(first: TinyRun, second: TinyRun) -> bool:
    return first.weights == second.weights and first.timeless == second.timeless


@pytest.mark.parametrize(
    "fleet", tiers(["gru@0.25", "lstm2@0.25", "transformer1d-2@0.25", "har-cnn@0.1"], ["gru@0.25"])
)
def test_a_run_on_signals_repeats_to_the_bit(fleet: str, tmp_path: Path) -> None:
    settings = {"method": "fedavg", "data__name": "waves", "fleet": fleet}
    first, second = (play(flat(tmp_path / name, **settings)) for name in "ab")
    assert equal(first, second)


def arrays(folder: Path, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        y = np.arange(12) % 3
        write_npz(folder / part / "0.npz", {"x": draw.normal(size=(12, *shape)), "y": y})


@pytest.mark.parametrize(
    ("shape", "kind", "other"),
    [((3, 32), "signal", (3, 40)), ((3, 32), "signal", (4, 32)), ((5,), "table", (6,))],
)
def test_a_client_with_samples_of_another_shape_is_refused_by_name_at_the_census(
    shape: tuple[int, ...], kind: str, other: tuple[int, ...], tmp_path: Path
) -> None:
    for name in ("server", "0", "1", "2"):
        arrays(tmp_path / name, other if name == "1" else shape)
    data = {"data__name": "npz", "data__kind": kind, "data__dir": str(tmp_path / "{k}")}
    rest = {"data__partition": "own", "data__samples": 0, "data__test_samples": 0, "clients": 3}
    expected, actual = ("x".join(map(str, sizes)) for sizes in (shape, other))
    with pytest.raises(Stopped, match=f"'{kind}:{actual}/3/.* server '{kind}:{expected}/3/"):
        play(flat(tmp_path / "run", method="fedavg", fleet="mlp@0.1", **data, **rest))
