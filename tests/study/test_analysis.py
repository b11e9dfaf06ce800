"""``fedmosaic study analyse``: CKA, the further round, similarity, overheads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common import models
from common.data import load
from common.data.batches import normalise
from common.journal import Entry
from common.models.classifier import Split
from common.parse import parse, to_toml
from common.seeds import stream
from common.techniques.cka import alignment, centred_gram, pairwise
from common.training.task import Task
from deploy.study.analyse import analyse, features, mean_pair, overheads, similarity
from deploy.study.finished import further_round
from server_app.storage import summary
from tests.support.tiny import TinyRun, flat, play

FLEET = {"fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"}


Finish = Callable[..., Path]


@pytest.fixture
def finished(tmp_path: Path) -> Finish:
    """Makes the folder of a tiny finished run, its config beside it as the command line has it."""
    count = iter(range(100))

    def go(**changes: Any) -> Path:
        folder = tmp_path / f"run{next(count)}"
        settings = flat(folder, **{"method": "fedin", **FLEET, **changes})
        play(settings)
        (folder / "config.toml").write_text(to_toml({**settings, "resume": False}))
        return folder

    return go


def test_the_further_round_is_the_next_and_changes_nothing(finished: Finish) -> None:
    folder = finished()
    before = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    with further_round(folder, 4, 0) as further:
        assert [client.k for client, _ in further.replies] == [0, 1, 2, 3]
        metrics = [reply.metrics for _, reply in further.replies]
    assert {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()} == before
    third = TinyRun(finished(rounds=3)).journal[3]["client_metrics"]
    assert metrics == [third[str(k)] for k in range(4)]


def test_private_models_of_clients_are_found_in_copies(finished: Finish) -> None:
    folder = finished(method="fedorion", fleet="cnn2@0.5,cnn3@0.5")
    with further_round(folder, 2, 0) as further:
        assert [client.architecture for client, _ in further.networks()] == ["cnn2@0.5", "cnn3@0.5"]


def test_a_run_without_stages_or_checkpoint_is_refused(finished: Finish) -> None:
    folder = finished(method="fedavg", fleet="mlp@0.25", rounds=1)
    with further_round(folder, 2, 0) as further, pytest.raises(ValueError, match="has no stages"):
        further.networks()
    (folder / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match="has no checkpoint"), further_round(folder, 2, 0):
        pass


def test_features_and_similarity_of_stages_are_the_networks_own(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, method="fedin"))
    data = load(config.data)
    task = Task.of(config, data, torch.device("cpu"))
    net = models.build("resnet10@0.0625", data.shape, 3, seed=1, stem="cifar").eval()
    assert isinstance(net, Split)
    found = features(net, data.x_test[:9], task)
    assert list(found) == ["layer1", "layer2", "layer3", "layer4"]
    s_in = net.extractor(normalise(data.x_test[:9], data.mean, data.std))
    expected = net.get_submodule("layer1")(s_in)
    assert torch.allclose(found["layer1"], expected.detach(), atol=1e-6)
    assert torch.allclose(found["layer4"], net.intermediate(s_in).detach(), atol=1e-6)
    nets = [models.build("cnn3@0.5", data.shape, 3, seed=s).eval() for s in (1, 2)]
    (matrix,) = similarity(nets, data.x_test, task).values()  # type: ignore[arg-type]
    grams = [centred_gram(features(n, data.x_test, task)["layer1"]) for n in nets]  # type: ignore[arg-type]
    assert float(matrix[0, 1]) == pytest.approx(alignment(*grams))
    assert mean_pair(matrix) == pytest.approx(float(matrix[0, 1]))
    assert float(matrix[0, 0]) == pytest.approx(1)
    three = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1, 0.6], [0.4, 0.6, 1]])
    assert mean_pair(three) == pytest.approx(0.4), "the diagonal is left out"


def test_overheads_count_weights_and_features_apart(finished: Finish) -> None:
    with further_round(finished(rounds=1, fedin__samples=5), 3, 0) as further:
        found = overheads(further)
        networks = [net for _, net in further.networks()]
    assert found.parameters == sum(models.count(net) for net in networks) / 3
    # cnn@0.5 on 8×8: s_in 16×4×4 and s_out 32×2×2 are 384 numbers a sample; 16 up, 5 down
    assert (found.further_up, found.further_down) == (16 * 384, 5 * 384)
    # weights, gradients and momentum at least
    assert found.memory_mb > 3 * 4 * found.parameters / 1e6


@pytest.mark.full
def test_analyse_writes_numbers_and_figures(finished: Finish, tmp_path: Path) -> None:
    layerwise = {"average__across": "layerwise", "rounds": 1}
    methods = ({"rounds": 1}, {"method": "fedavg", **layerwise}, {"method": "moon", **layerwise})
    folders = [finished(**changes) for changes in methods]
    out = tmp_path / "out"
    written, table, _ = analyse(folders, out, clients=4, images=40, label=1, workers=0)
    pictures = {f"run{i}-{of}.png" for i in range(3) for of in ("cka", "tsne")}
    assert {path.name for path in written} == {"analysis.json", "analysis.md", "cka.png", *pictures}
    fedin, fedavg, moon = json.loads((out / "analysis.json").read_text()).values()
    assert fedin["clients"] == ["0 cnn2@0.5", "1 cnn3@0.5", "2 cnn4@0.5", "3 cnn2@0.5"]
    assert list(fedavg["tsne"]["points"]) == ["cnn2@0.5", "cnn3@0.5", "cnn4@0.5"]
    assert len(table.rows) == 3
    assert list(moon["cka"]) == list(fedavg["cka"]), "moon's networks are seen before a projection"
    assert 0 < fedavg["cka"]["layer1"] <= 1 and 0 < moon["cka"]["layer1"] <= 1
    assert moon["overheads"]["parameters"] > fedavg["overheads"]["parameters"]
    assert fedavg["overheads"]["further_up"] == fedavg["overheads"]["further_down"] == 0
    assert fedavg["overheads"]["buffers"] > 0


@pytest.mark.full
def test_features_of_two_widths_share_no_plane(finished: Finish, tmp_path: Path) -> None:
    widths = {"fleet": "cnn2@0.5,cnn2@0.25-up", "average__across": "width"}
    folder = finished(method="heterofl", score__bn="batch", rounds=1, **widths)
    two = {"clients": 2, "images": 40, "label": 1, "workers": 0}
    written, table, found = analyse([folder], tmp_path / "out", **two)
    assert found[folder.name]["tsne"] is None  # type: ignore[index]
    assert not [path for path in written if "tsne" in path.name]
    ((_, alike, *rest),) = table.rows
    assert 0 < float(alike) <= 1 and "–" in rest


@pytest.mark.full
def test_runs_that_differ_in_seed_are_one_row(finished: Finish, tmp_path: Path) -> None:
    folders = [finished(rounds=1, seed=seed) for seed in (1, 2)]
    to = tmp_path / "out"
    _, table, found = analyse(folders, to, clients=3, images=40, label=1, workers=0)
    ((name, alike, *_),) = table.rows
    first, second = (found[folder.name]["cka"]["layer1"] for folder in folders)  # type: ignore[index]
    mean, half = (first + second) / 2, 12.7062 * abs(first - second) / 2  # t of 1 at 0.975
    assert name == "fedin, 2 seeds" and alike == f"{mean:.3f} ± {half:.3f}"
    assert "of the seeds ± half" in (to / "analysis.md").read_text()


def test_what_cannot_be_analysed_is_refused(finished: Finish, tmp_path: Path) -> None:
    folders, to = [finished(rounds=1)], tmp_path / "out"
    with pytest.raises(ValueError, match="--clients 1 .* 2 or more"):
        analyse(folders, to, clients=1, label=0, images=40, workers=0)
    with pytest.raises(ValueError, match="class 3: the data set has 0 to 2"):
        analyse(folders, to, clients=2, label=3, images=40, workers=0)
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match="missing holds no finished run"):
        analyse([missing], missing / "analysis", clients=2, label=0, images=40, workers=0)
    assert not to.exists() and not missing.exists()


def test_the_summary_says_when_the_target_was_reached() -> None:
    def reached(*scores: float | None, target: float = 0.6) -> object:
        rounds = [Entry(round=t, accuracy=score) for t, score in enumerate(scores, 1)]
        return summary._rounds_to_target(rounds, target)

    # the mean of rounds 2 to 6 is 0.6, that of rounds 1 to 5 is 0.5
    assert reached(0.2, 0.7, 0.4, 0.5, 0.7, 0.7) == {"target": 0.6, "first": 2, "mean5": 6}
    assert reached(None, None, 0.6, None) == {"target": 0.6, "first": 3, "mean5": None}
    assert reached(0.5) == {"target": 0.6, "first": None, "mean5": None}
    assert reached(0.5, target=0.0) is None


def cka(x: torch.Tensor, y: torch.Tensor) -> float:
    return alignment(centred_gram(x), centred_gram(y))


def drawn(name: str, n: int = 20, d: int = 6) -> torch.Tensor:
    return torch.randn(n, d, generator=stream(1, name), dtype=torch.float64)


def test_cka_by_hand() -> None:
    # x centred: −1, 0, 1; y centred: −1, 2, −1: orthogonal, so 0.
    x = torch.tensor([[0.0], [1.0], [2.0]])
    assert cka(x, torch.tensor([[0.0], [3.0], [0.0]])) == pytest.approx(0)
    # z centred: −1, −1, 2: ⟨x, z⟩ = 3, CKA = (x·z)² / (‖x‖² ‖z‖²) = 9 / (2 · 6)
    assert cka(x, torch.tensor([[0.0], [0.0], [3.0]])) == pytest.approx(0.75)
    # x = ±e1, ±e2; y keeps the first axis only: ‖YᵀX‖² = 4, ‖XᵀX‖ = √8, ‖YᵀY‖ = 2
    x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert cka(x, x[:, :1]) == pytest.approx(4 / (8**0.5 * 2))


def test_it_equals_the_covariance_form() -> None:
    x, y = drawn("x"), drawn("y", d=9)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert cka(x, y) == pytest.approx(float(expected))


def test_rotation_scale_and_shift_change_nothing_but_another_linear_map_does() -> None:
    x, y = drawn("x"), drawn("y")
    rotation, _ = torch.linalg.qr(drawn("q", 6, 6))
    for changed in (x @ rotation, 3.5 * x, x + 7):
        assert cka(x, changed) == pytest.approx(1)
        assert cka(changed, y) == pytest.approx(cka(x, y))
    assert cka(x, x @ torch.diag(torch.tensor([9.0, 1, 1, 1, 1, 1]).double())) < 0.95


def test_pairs_are_symmetric_with_ones_on_the_diagonal() -> None:
    maps = drawn("m", 10, 12).view(10, 3, 2, 2)
    found = pairwise([centred_gram(x) for x in (maps, drawn("x", 10), drawn("y", 10))])
    ones = torch.ones(3).double()
    assert torch.allclose(found, found.T) and torch.allclose(found.diagonal(), ones)
    assert found[0, 1] == pytest.approx(cka(maps, drawn("x", 10)))


def test_constant_features_are_like_nothing_and_one_sample_is_refused() -> None:
    assert cka(torch.ones(4, 2), drawn("x", 4)) == 0
    with pytest.raises(ValueError, match="it needs 2 or more"):
        cka(torch.ones(1, 2), torch.ones(1, 2))
