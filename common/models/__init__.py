"""The architectures by name: ``build("resnet8", (3, 32, 32), 10, seed=0)``.

A spec is a name from ``MODELS``, or a name and a width factor: ``resnet18@0.25`` has a quarter of
the channels everywhere (at least 4 in a layer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from common import seeds
from common.models.architecture import Architecture
from common.models.cifar_resnet import CifarResNet
from common.models.classifier import Classifier, Split
from common.models.cnn import CNN
from common.models.densenet import CifarDenseNet, DenseNet121
from common.models.lenet import LeNet5
from common.models.mlp import MLP
from common.models.mobilenet import MobileNetV2
from common.models.norm import single, sixteen
from common.models.resnet import ResNet
from common.models.shufflenet import ShuffleNetV2
from common.models.wide_resnet import WideResNet

__all__ = [
    "MODELS",
    "Architecture",
    "Classifier",
    "Split",
    "build",
    "check",
    "count",
    "parameters",
    "parse",
    "smallest",
]

STEMS = ("auto", "cifar", "imagenet")
WIDEST = 16.0  #: the largest width factor

# Why a side is the smallest: networks of three stages halve it twice (4 pixels), the ImageNet ones
# three times behind a cifar stem (8 pixels) and five times with their own, of which the later leave
# one pixel as it is. Where a layer truly breaks below, the row says so.
_CIFAR = {"own": 4}
_IMAGENET = {"imagenet": 8, "cifar": 8}

MODELS: dict[str, Architecture] = {
    "wrn-40-1": Architecture(
        partial(WideResNet, depth=40, widen=1),
        563_930,
        (3, 32, 32),
        "FedORION; Zagoruyko and Komodakis, Wide residual networks",
        _CIFAR,
    ),
    "wrn-40-2": Architecture(
        partial(WideResNet, depth=40, widen=2),
        2_243_546,
        (3, 32, 32),
        "Zagoruyko and Komodakis, Wide residual networks",
        _CIFAR,
    ),
    "wrn-16-1": Architecture(
        partial(WideResNet, depth=16, widen=1),
        175_066,
        (3, 32, 32),
        "Zagoruyko and Komodakis, Wide residual networks",
        _CIFAR,
    ),
    "resnet8": Architecture(
        partial(CifarResNet, depth=8),
        78_042,
        (3, 32, 32),
        "FedDF; He et al., Deep residual learning, with projection shortcuts",
        _CIFAR,
    ),
    "resnet20": Architecture(
        partial(CifarResNet, depth=20),
        272_474,
        (3, 32, 32),
        "FedDF, FedORION; He et al., with projection shortcuts",
        _CIFAR,
    ),
    "resnet32": Architecture(
        partial(CifarResNet, depth=32),
        466_906,
        (3, 32, 32),
        "FedORION; He et al., with projection shortcuts",
        _CIFAR,
    ),
    "resnet8-a": Architecture(
        partial(CifarResNet, depth=8, shortcut="padding"),
        75_290,
        (3, 32, 32),
        "He et al., parameter-free shortcuts (option A)",
        _CIFAR,
    ),
    "resnet20-a": Architecture(
        partial(CifarResNet, depth=20, shortcut="padding"),
        269_722,
        (3, 32, 32),
        "He et al., parameter-free shortcuts (option A)",
        _CIFAR,
    ),
    "resnet32-a": Architecture(
        partial(CifarResNet, depth=32, shortcut="padding"),
        464_154,
        (3, 32, 32),
        "He et al., parameter-free shortcuts (option A)",
        _CIFAR,
    ),
    "resnet8-wide-gn": Architecture(
        partial(CifarResNet, depth=8, first=64, norm=single),
        1_227_594,
        (3, 32, 32),
        "FedKF: 64-128-256 channels, GroupNorm of one channel per group",
        {"own": 5},  # one channel's one pixel, normalised, would be a constant
    ),
    "resnet8-wide-bn": Architecture(
        partial(CifarResNet, depth=8, first=64),
        1_227_594,
        (3, 32, 32),
        "DL-MH: ResNet-18 cut to 8 layers, read as 64-128-256 channels with BatchNorm",
        _CIFAR,
    ),
    "resnet8-gn16": Architecture(
        partial(CifarResNet, depth=8, norm=sixteen),
        78_042,
        (3, 32, 32),
        "FedGKD: 16-32-64 channels, GroupNorm of 16 groups",
        _CIFAR,
    ),
    "resnet10": Architecture(
        partial(ResNet, blocks=(1, 1, 1, 1)), 4_910_922, (3, 32, 32), "FedIN, Table VI", _IMAGENET
    ),
    "resnet14": Architecture(
        partial(ResNet, blocks=(1, 1, 2, 2)), 10_812_234, (3, 32, 32), "FedIN, Table VI", _IMAGENET
    ),
    "resnet18": Architecture(
        partial(ResNet, blocks=(2, 2, 2, 2)),
        11_181_642,
        (3, 32, 32),
        "torchvision; FedORION; FedIN, Table VI",
        _IMAGENET,
        pretrained=True,
    ),
    "resnet22": Architecture(
        partial(ResNet, blocks=(2, 2, 3, 3)), 17_082_954, (3, 32, 32), "FedIN, Table VI", _IMAGENET
    ),
    "resnet26": Architecture(
        partial(ResNet, blocks=(3, 3, 3, 3)), 17_452_362, (3, 32, 32), "FedIN, Table VI", _IMAGENET
    ),
    "resnet34": Architecture(
        partial(ResNet, blocks=(3, 4, 6, 3)),
        21_289_802,
        (3, 32, 32),
        "torchvision; FedORION",
        _IMAGENET,
        pretrained=True,
    ),
    "mobilenetv2": Architecture(
        MobileNetV2, 2_236_682, (3, 32, 32), "torchvision; FedORION", _IMAGENET, pretrained=True
    ),
    "shufflenetv2": Architecture(
        partial(ShuffleNetV2, widths=(24, 116, 232, 464, 1024)),
        1_263_854,
        (3, 32, 32),
        "torchvision; FedORION, FedDF",
        _IMAGENET,
        pretrained=True,
    ),
    "shufflenetv2-x0.5": Architecture(
        partial(ShuffleNetV2, widths=(24, 48, 96, 192, 1024)),
        352_042,
        (3, 32, 32),
        "torchvision",
        _IMAGENET,
        pretrained=True,
    ),
    "densenet-bc-40-12": Architecture(
        partial(CifarDenseNet, depth=40, growth=12, bc=True),
        176_122,
        (3, 32, 32),
        "DL-MH's DenseNet, read as Huang et al., DenseNet-BC, depth 40, growth 12",
        _CIFAR,
    ),
    "densenet-40-12": Architecture(
        partial(CifarDenseNet, depth=40, growth=12, bc=False),
        1_019_722,
        (3, 32, 32),
        "Huang et al., depth 40, growth 12",
        _CIFAR,
    ),
    "densenet-bc-100-12": Architecture(
        partial(CifarDenseNet, depth=100, growth=12, bc=True),
        769_162,
        (3, 32, 32),
        "Huang et al., DenseNet-BC, depth 100, growth 12",
        _CIFAR,
    ),
    "densenet121": Architecture(
        DenseNet121,
        6_956_426,
        (3, 32, 32),
        "torchvision; Huang et al., DenseNet-121",
        {"cifar": 8, "imagenet": 29},  # four unpadded halvings
        pretrained=True,
    ),
    "lenet5": Architecture(
        LeNet5, 61_706, (1, 32, 32), "FedKF: LeCun et al., with ReLU and max pooling"
    ),
    "mlp": Architecture(
        partial(MLP, hidden=(128, 128)), 26_634, (1, 8, 8), "ours, for CPUs: two hidden layers"
    ),
    "cnn2": Architecture(partial(CNN, depth=2), 19_562, (1, 8, 8), "ours, for CPUs", _CIFAR),
    "cnn3": Architecture(partial(CNN, depth=3), 56_554, (1, 8, 8), "ours, for CPUs", _CIFAR),
    "cnn4": Architecture(partial(CNN, depth=4), 93_546, (1, 8, 8), "ours, for CPUs", _CIFAR),
    "points-mlp-1": Architecture(
        partial(MLP, hidden=(8,)), 130, (2, 1, 1), "FedORION, Figure 1 (sizes ours)"
    ),
    "points-mlp-2": Architecture(
        partial(MLP, hidden=(8, 8)), 218, (2, 1, 1), "FedORION, Figure 1 (sizes ours)"
    ),
    "points-mlp-3": Architecture(
        partial(MLP, hidden=(16, 8, 8)), 410, (2, 1, 1), "FedORION, Figure 1 (sizes ours)"
    ),
}


def parse(spec: str) -> tuple[str, float]:
    """``"resnet18@0.25"`` to ``("resnet18", 0.25)``; without a factor it is 1.

    An unknown name or a factor outside (0, 16] is a ``ValueError``.
    """
    name, at, width = spec.partition("@")
    if name not in MODELS:
        raise ValueError(f"model {spec!r}: no architecture {name!r}; there are {', '.join(MODELS)}")
    try:
        factor = float(width) if at else 1.0
    except ValueError:
        factor = math.nan
    if not 0 < factor <= WIDEST:
        raise ValueError(
            f"model {spec!r}: the width factor {width!r} must be a number in (0, {WIDEST:g}], "
            f"as in {name}@0.5"
        )
    return name, factor


def check(
    spec: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    stem: str = "auto",
    pretrained: bool = False,
) -> None:
    """Refuse what ``build`` could not make or what could not run, without building it.

    ``ValueError`` in one line: an unknown spec or stem, a shape that is not (C, H, W), fewer than 2
    classes, an input smaller than the architecture takes, pretrained weights that do not exist.
    """
    name, _ = parse(spec)
    architecture = MODELS[name]
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r}: must be one of {', '.join(STEMS)}")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"model {spec!r}: input {tuple(shape)} must be (channels, height, width), "
            "each at least 1"
        )
    if classes < 2:
        raise ValueError(f"model {spec!r}: {classes} classes; at least 2 are needed")
    chosen = _stem(architecture, stem)
    least = architecture.stems[chosen]
    if min(shape[1:]) < least:
        size = "×".join(map(str, shape[1:]))
        kind = "" if chosen == "own" else f" (stem {chosen})"
        raise ValueError(
            f"model {spec!r}{kind}: input {size} is too small, it takes {least}×{least} or more"
        )
    if pretrained and not published(spec, stem=stem):
        known = ", ".join(k for k, row in MODELS.items() if row.pretrained)
        raise ValueError(
            f"model {spec!r}: no pretrained weights; at width 1 there are some for {known}"
        )


def published(spec: str, *, stem: str = "auto") -> bool:
    """Whether torchvision has ImageNet weights for ``spec``: some architectures, at width 1."""
    name, factor = parse(spec)
    architecture = MODELS[name]
    return architecture.pretrained and factor == 1 and _stem(architecture, stem) != "own"


def build(
    spec: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    seed: int,
    name: tuple[str | int, ...] = ("init",),
    stem: str = "auto",
    pretrained: bool = False,
) -> Classifier:
    """The network ``spec`` for images (C, H, W), in train mode, on torch's default device.

    The initial weights are a function of ``seed`` and ``name``; the global random state is left as
    it was. ``stem`` (``auto``, ``cifar``, ``imagenet``) matters to the architectures that have
    both; the others have one of their own. Errors are those of ``check``, and a ``ValueError`` when
    ``pretrained`` weights (torchvision's, ImageNet) cannot be fetched.
    """
    check(spec, shape, classes, stem=stem, pretrained=pretrained)
    architecture_name, factor = parse(spec)
    architecture = MODELS[architecture_name]
    chosen = _stem(architecture, stem)
    options: dict[str, str | None] = {} if chosen == "own" else {"stem": chosen}
    if pretrained:
        options["pretrained"] = _PUBLISHED[architecture_name]
    with seeds.scope(seed, *name):
        model = architecture.build(tuple(shape), classes, factor, **options)
    model.spec = spec
    return model


def count(model: nn.Module) -> int:
    """The number of parameters of ``model``; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameters(spec: str, shape: tuple[int, int, int], classes: int, *, stem: str = "auto") -> int:
    """The number of parameters of a network that is not built."""
    with torch.device("meta"):
        return count(build(spec, shape, classes, seed=0, stem=stem))


def smallest(
    specs: Iterable[str], shape: tuple[int, int, int], classes: int, *, stem: str = "auto"
) -> str:
    """The spec with the fewest parameters, the first of several: FedORION's common architecture."""
    found = list(dict.fromkeys(specs))
    if not found:
        raise ValueError("the smallest of no models: name at least one")
    return min(found, key=lambda spec: parameters(spec, shape, classes, stem=stem))


def _stem(architecture: Architecture, stem: str) -> str:
    return stem if stem in architecture.stems else architecture.stem


_PUBLISHED = {
    "resnet18": "ResNet18_Weights.IMAGENET1K_V1",
    "resnet34": "ResNet34_Weights.IMAGENET1K_V1",
    "mobilenetv2": "MobileNet_V2_Weights.IMAGENET1K_V1",
    "shufflenetv2": "ShuffleNet_V2_X1_0_Weights.IMAGENET1K_V1",
    "shufflenetv2-x0.5": "ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1",
    "densenet121": "DenseNet121_Weights.IMAGENET1K_V1",
}
