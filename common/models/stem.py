"""Stems: how a network of ImageNet's meets images of 32 pixels.

``imagenet`` keeps the architecture as published, which shrinks 32×32 to one pixel; ``cifar`` starts
with a 3×3 convolution of stride 1 and drops the first pooling.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

Stem = Literal["imagenet", "cifar"]


def first_convolution(conv: nn.Conv2d, channels: int, stem: Stem) -> nn.Conv2d:
    """``conv``, or where channels or stem differ a fresh one, initialised by fan out (He)."""
    if stem == "imagenet" and conv.in_channels == channels:
        return conv
    kernel, stride = (3, 1) if stem == "cifar" else (conv.kernel_size[0], conv.stride[0])
    fresh = nn.Conv2d(channels, conv.out_channels, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
    return fresh
