"""torchvision imports beside this torch, whichever of their builds are installed."""

from __future__ import annotations

import torch

from common.vision import torchvision


def test_torchvision_s_networks_are_there() -> None:
    assert torchvision.models.resnet18(num_classes=10).fc.out_features == 10


def test_its_two_operators_are_known_by_name() -> None:
    assert hasattr(torch.ops.torchvision, "nms")


def test_nothing_is_declared_beside_a_cuda_build() -> None:
    from common import vision

    if torch.version.cuda is not None:
        assert vision.declared is None
    else:
        assert (vision.declared is None) is torchvision.extension._has_ops()
