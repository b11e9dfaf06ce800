"""Multiply-accumulates per image: by hand, and as measured for the papers' networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.models import build
from tests.support.cost import macs


def test_a_linear_layer_costs_inputs_times_outputs() -> None:
    assert macs(nn.Linear(6, 4), (6,)) == 24


def test_a_convolution_costs_its_window_at_every_output_pixel() -> None:
    # 4×4 output pixels × 10 channels × (3×3 window × 6 inputs / 2 groups)
    assert macs(nn.Conv2d(6, 10, 3, stride=2, padding=1, groups=2), (6, 8, 8)) == 16 * 10 * 27


def test_lenet5_by_hand() -> None:
    convolutions = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 120 * 400
    linear = 120 * 84 + 84 * 10
    assert macs(build("lenet5", (1, 32, 32), 10, seed=0), (1, 32, 32)) == convolutions + linear


@pytest.mark.parametrize(
    ("spec", "side", "stem", "millions"),
    [
        ("wrn-40-1", 32, "auto", 83.3),
        ("wrn-16-1", 32, "auto", 26.7),
        ("resnet8", 32, "auto", 12.5),
        ("resnet20", 32, "auto", 40.8),
        ("resnet32", 32, "auto", 69.1),
        ("resnet8-wide-gn", 32, "auto", 194.7),
        ("resnet10", 32, "auto", 18.1),
        ("resnet14", 32, "auto", 27.6),
        ("resnet18", 32, "auto", 37.0),
        ("resnet22", 32, "auto", 46.4),
        ("resnet26", 32, "auto", 55.9),
        ("resnet34", 32, "auto", 74.8),
        ("resnet18", 32, "cifar", 555),
        ("resnet18", 28, "cifar", 456),
        ("densenet-bc-40-12", 32, "auto", 72),
        ("densenet-40-12", 32, "auto", 265),
        ("densenet-bc-100-12", 32, "auto", 288),
        ("densenet121", 32, "cifar", 890),
    ],
)
def test_published_networks_cost_what_they_should(
    spec: str, side: int, stem: str, millions: float
) -> None:
    shape = (3, side, side)
    with torch.device("meta"):
        model = build(spec, shape, 10, seed=0, stem=stem)
        assert macs(model, shape) / 1e6 == pytest.approx(millions, rel=0.01)


def test_counting_leaves_the_network_as_it_was() -> None:
    model = build("resnet8", (1, 8, 8), 10, seed=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    first = macs(model, (1, 8, 8))
    assert macs(model, (1, 8, 8)) == first
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(RuntimeError):
        macs(model, (2, 8, 8))
    assert not any(module._forward_hooks for module in model.modules())
