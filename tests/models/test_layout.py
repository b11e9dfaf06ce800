"""The layout of a network's weights: by its parameters, and never one that is not safe."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from common.config import MemoryFormat
from common.device import FEWEST_CHANNELS, arrange
from common.models import build


def is_last(net: nn.Module) -> bool:
    return any(
        p.ndim == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)
        for p in net.parameters()
    )


@pytest.mark.parametrize(
    ("spec", "memory_format", "last"),
    [
        ("resnet8@0.5", "auto", True),
        ("resnet8@0.5", "contiguous", False),
        ("resnet8@0.25", "auto", False),
        ("resnet8@0.25", "channels-last", False),
        ("resnet18@0.0625", "channels-last", False),
        ("mobilenetv2@0.1", "auto", True),
    ],
)
def test_a_network_with_few_channels_into_a_strided_convolution_keeps_the_default(
    spec: str, memory_format: MemoryFormat, last: bool
) -> None:
    assert is_last(arrange(build(spec, (3, 32, 32), 10, seed=0), memory_format)) == last


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (nn.Conv2d(FEWEST_CHANNELS - 1, 8, 1, 2), False),
        (nn.Conv2d(FEWEST_CHANNELS, 8, 1, 2), True),
        (nn.Conv2d(FEWEST_CHANNELS, 8, 1, 2, groups=2), False),
        (nn.Conv2d(3, 8, 1, 1), True),
        (nn.Conv2d(3, 8, 3, 2), True),
    ],
)
def test_a_1x1_convolution_with_a_stride_needs_eight_channels(layer: nn.Conv2d, last: bool) -> None:
    seen = nn.Sequential(nn.Conv2d(3, 5, 3), layer)
    assert is_last(arrange(seen, "channels-last")) == last


STEP = """
import sys, torch
from torch.nn import functional as F
from common.device import arrange, settle
from common.models import build

settle(1)
x = torch.randn(32, 1, 16, 16, generator=torch.Generator().manual_seed(1))
y = torch.arange(32) % 10
gradients = []
for layout in ("auto", "contiguous"):
    net = arrange(build(sys.argv[1], (1, 16, 16), 10, seed=0), layout).train()
    for _ in range(10):
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
    gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
one, other = gradients
apart = float((one - other).norm() / other.norm())
assert apart < 0.05, apart  # rounding alone may turn a ReLU on or off
"""


@pytest.mark.full
@pytest.mark.parametrize("spec", ["resnet8@0.25", "resnet8@0.5", "resnet8", "resnet10@0.25"])
def test_gradients_are_those_of_the_default_layout(spec: str) -> None:
    done = subprocess.run([sys.executable, "-c", STEP, spec], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
