"""A common number of features before the heads of all networks (``feature-dim``)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from common import models
from common.models.classifier import Classifier, Pooled
from common.settings.parse import parse
from tests.support.halves import task
from tests.support.tiny import Run, flat

GREY = (1, 8, 8)


class Given(Classifier):
    """The images' values as features."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(d, 3)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(
    ("features", "pooled"),
    [([1, 2, 3, 4], [1.5, 3.5]), ([1, 2], [1, 1, 2, 2]), ([1, 2, 3], [1.5, 2.5]), ([5, 7], [5, 7])],
)
def test_features_are_pooled_as_computed_by_hand(features: list[int], pooled: list[float]) -> None:
    net = Pooled(Given(len(features)), len(pooled))
    assert net.features(torch.tensor([features], dtype=torch.float32)).tolist() == [pooled]


@pytest.mark.parametrize(("d", "width"), [(10, 4), (3, 8), (84, 32)])
def test_the_means_are_those_of_torchs_adaptive_pooling(d: int, width: int) -> None:
    x = torch.randn(4, d, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Pooled(Given(d), width).features(x), F.adaptive_avg_pool1d(x, width))


@pytest.mark.parametrize("spec", ["mlp", "lenet5", "resnet8", "cnn2@0.5", "torchvision:resnet18"])
def test_every_architecture_has_the_width(spec: str) -> None:
    plain = models.build(spec, (3, 32, 32), 10, seed=1)
    net = models.build(spec, (3, 32, 32), 10, "auto", False, 24, seed=1).eval()
    assert net.features(torch.zeros(2, 3, 32, 32)).shape == (2, 24)
    more = 24 * 10 - plain.head.in_features * 10
    assert models.count(net) == models.count(plain) + more
    assert models.parameters(spec, (3, 32, 32), 10, feature_dim=24) == models.count(net)
    own = net.state_dict()
    for name, value in plain.state_dict().items():
        assert name.startswith("head.") or torch.equal(own[f"base.{name}"], value), name
    assert net.spec == spec and len(own) == len(plain.state_dict())


def test_all_parts_of_a_run_see_it(played: Run) -> None:
    for client in played(method="local", rounds=1, feature_dim=12).journal[0]["clients"]:
        count = models.parameters(client["model"], GREY, 3, feature_dim=12)
        assert client["parameters"] == count
    ours = task(fleet="cnn2@0.5,mlp@0.25", feature_dim=12)
    assert ours.expected("cnn2@0.5")["head.weight"].shape == (3, 12)
    assert ours.without_values("mlp@0.25").head.in_features == 12
    assert ours.cached_network("mlp@0.25", ours.build("mlp@0.25", name=("x",)).state_dict())


def test_the_smallest_architecture_is_that_with_the_common_head() -> None:
    fleet, grey = ["resnet10@0.0625", "cnn2"], (1, 32, 32)
    assert models.smallest(fleet, grey, 100) == "resnet10@0.0625"
    assert models.smallest(fleet, grey, 100, feature_dim=16) == "cnn2"


def test_a_file_of_weights_fits_below_the_common_head(tmp_path: Path) -> None:
    saved = models.build("cnn2@0.5", GREY, 3, seed=7).state_dict()
    save_file(saved, tmp_path / "w.safetensors")
    ours = task(fleet="cnn2@0.5", feature_dim=12, weights=str(tmp_path / "w.safetensors"))
    net = ours.build("cnn2@0.5", name=("init",), first=True).state_dict()
    below = [name for name in saved if not name.startswith("head.")]
    assert below and all(torch.equal(net[f"base.{name}"], saved[name]) for name in below)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"method": "fedin"}, 'feature-dim = 8 is not allowed with method = "fedin", which cuts'),
        ({"method": "moon"}, 'feature-dim = 8 is not allowed with projection = "on"; allowed: 0'),
    ],
)
def test_where_it_cannot_be_is_refused(changes: dict[str, str], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        parse(flat(tmp_path, **changes, feature_dim=8))
    assert line in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="has exits, whose heads feature-dim cannot change"):
        models.parameters("cnn2-exits1", GREY, 3, feature_dim=8)
