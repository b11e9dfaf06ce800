"""The architectures by name: ``build("resnet8", (3, 32, 32), 10, seed=0)``.

A spec is a name from ``MODELS``, or a name and a width factor: ``resnet18@0.25`` has a quarter of
the channels everywhere (at least 4 in a layer), ``resnet18@0.25-up`` rounds them up instead, also
to fewer than 4. Networks of others (``torchvision:NAME``, ``timm:NAME``, a plug-in's) have none.

``resnet18-exits2`` is the first two stages of a ResNet-18, with a classifier after each
(``exits.py``), for the ImageNet family's ResNets (1 to 4) and the CNNs; ``resnet18-linear2`` the
same with plain linear ones.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import final

import torch
from torch import nn

from common.models import external
from common.models.classifier import Classifier, Projected, Split
from common.models.convolutional import (
    CifarDenseNet,
    CifarResNet,
    DenseNet121,
    MobileNetV2,
    ResNet,
    ShuffleNetV2,
    WideResNet,
)
from common.models.exits import Exits, Kind
from common.models.layers import RoundedUp, Shape, single, sixteen
from common.models.small import CNN, MLP, LeNet5
from common.models.weights import load_published
from common.settings import plugins
from common.training import seeds

WIDEST = 16.0  #: the largest width factor
UP = "-up"  #: behind one by which channels are rounded up


@final
@dataclass(frozen=True)
class Architecture:
    """How a network is built, what it takes, and how large it is in its source."""

    build: Callable[..., Classifier]  #: of input shape, classes, width factor; keyword: stem
    params: int  #: trainable numbers for 10 classes and the default input
    source: str
    input: Shape = (3, 32, 32)  #: default (C, H, W)
    #: smallest side in pixels for each stem, the default one first
    stems: Mapping[str, int] = field(default_factory=lambda: {"own": 4})
    pretrained: str = ""  #: torchvision's name for it where it has ImageNet weights
    scales: bool = True  #: it takes a width factor
    nests: bool = True  #: a narrower one's channels are the first of a wider one's
    check: Callable[[Shape, int], object] | None = None  #: tries a network that is not ours

    @property
    def stem(self) -> str:
        """The stem that ``auto`` stands for."""
        return next(iter(self.stems))

    @property
    def smallest(self) -> int:
        """The smallest side in pixels that the default stem accepts."""
        return self.stems[self.stem]


# Why a side is the smallest: networks of three stages halve it twice (4 pixels), the ImageNet ones
# three times behind a cifar stem (8 pixels) and five times with their own, of which the later leave
# one pixel as it is. Where a layer truly breaks below, the row says so.
_BOTH = {"imagenet": 8, "cifar": 8}


def _row(
    kind: Callable[..., Classifier],
    params: int,
    source: str,
    side: int | Mapping[str, int] = 4,
    *,
    input: Shape = (3, 32, 32),
    pretrained: str = "",
    **options: object,
) -> Architecture:
    """``side``: the smallest, for the architecture's own stem or for each that it can have."""
    stems = {"own": side} if isinstance(side, int) else side
    # splits, concatenations and padded shortcuts move channels by numbers that grow with the width
    moves = kind in (ShuffleNetV2, CifarDenseNet, DenseNet121) or "shortcut" in options
    build = partial(kind, **options)
    return Architecture(build, params, source, input, stems, pretrained, nests=not moves)


def _densenet(depth: int, bc: bool, params: int, source: str) -> Architecture:
    return _row(CifarDenseNet, params, source, depth=depth, bc=bc)


def _shufflenet(width: int, params: int, source: str, pretrained: str) -> Architecture:
    """``width``: channels of the first of three stages, each twice as wide as the one before."""
    widths = (24, width, 2 * width, 4 * width, 1024)
    return _row(ShuffleNetV2, params, source, _BOTH, pretrained=pretrained, widths=widths)


def _resnet(blocks: str, params: int, source: str, pretrained: str = "") -> Architecture:
    counts = tuple(int(count) for count in blocks.split("-"))
    return _row(ResNet, params, source, _BOTH, pretrained=pretrained, blocks=counts)


_ZAGORUYKO = "Zagoruyko and Komodakis, Wide residual networks"
_HE = "He et al., Deep residual learning, with projection shortcuts"
_OPTION_A = "He et al., parameter-free shortcuts (option A)"
_GN = "FedKF: 64-128-256 channels, GroupNorm of one channel per group"
_CUT = "DL-MH: ResNet-18 cut to 8 layers, read as 64-128-256 channels with BatchNorm"
_GN16 = "FedGKD: 16-32-64 channels, GroupNorm of 16 groups"
_DL_MH = "DL-MH's DenseNet, read as Huang et al., DenseNet-BC, depth 40, growth 12"
_FIGURE_1 = "FedORION, Figure 1 (sizes ours)"
_FEDIN = "FedIN, Table VI"
_CPUS = "ours, for CPUs"

MODELS: dict[str, Architecture] = {
    "wrn-40-1": _row(WideResNet, 563_930, f"FedORION; {_ZAGORUYKO}", depth=40, widen=1),
    "wrn-40-2": _row(WideResNet, 2_243_546, _ZAGORUYKO, depth=40, widen=2),
    "wrn-16-1": _row(WideResNet, 175_066, _ZAGORUYKO, depth=16, widen=1),
    "resnet8": _row(CifarResNet, 78_042, f"FedDF; {_HE}", depth=8),
    "resnet20": _row(CifarResNet, 272_474, f"FedDF, FedORION; {_HE}", depth=20),
    "resnet32": _row(CifarResNet, 466_906, f"FedORION; {_HE}", depth=32),
    "resnet8-a": _row(CifarResNet, 75_290, _OPTION_A, depth=8, shortcut="padding"),
    "resnet20-a": _row(CifarResNet, 269_722, _OPTION_A, depth=20, shortcut="padding"),
    "resnet32-a": _row(CifarResNet, 464_154, _OPTION_A, depth=32, shortcut="padding"),
    # 4 pixels: one channel's one pixel, normalised, would be a constant
    "resnet8-wide-gn": _row(CifarResNet, 1_227_594, _GN, 5, depth=8, first=64, norm=single),
    "resnet8-wide-bn": _row(CifarResNet, 1_227_594, _CUT, depth=8, first=64),
    "resnet8-gn16": _row(CifarResNet, 78_042, _GN16, depth=8, norm=sixteen),
    "resnet10": _resnet("1-1-1-1", 4_910_922, _FEDIN),
    "resnet14": _resnet("1-1-2-2", 10_812_234, _FEDIN),
    "resnet18": _resnet("2-2-2-2", 11_181_642, f"torchvision; FedORION; {_FEDIN}", "ResNet18"),
    "resnet22": _resnet("2-2-3-3", 17_082_954, _FEDIN),
    "resnet26": _resnet("3-3-3-3", 17_452_362, _FEDIN),
    "resnet34": _resnet("3-4-6-3", 21_289_802, "torchvision; FedORION", "ResNet34"),
    "mobilenetv2": _row(
        MobileNetV2, 2_236_682, "torchvision; FedORION", _BOTH, pretrained="MobileNet_V2"
    ),
    "shufflenetv2": _shufflenet(
        116, 1_263_854, "torchvision; FedORION, FedDF", "ShuffleNet_V2_X1_0"
    ),
    "shufflenetv2-x0.5": _shufflenet(48, 352_042, "torchvision", "ShuffleNet_V2_X0_5"),
    "densenet-bc-40-12": _densenet(40, True, 176_122, _DL_MH),
    "densenet-40-12": _densenet(40, False, 1_019_722, "Huang et al., depth 40, growth 12"),
    "densenet-bc-100-12": _densenet(
        100, True, 769_162, "Huang et al., DenseNet-BC, depth 100, growth 12"
    ),
    "densenet121": _row(
        DenseNet121,
        6_956_426,
        "torchvision; Huang et al., DenseNet-121",
        {"cifar": 8, "imagenet": 29},  # four unpadded halvings
        pretrained="DenseNet121",
    ),
    "lenet5": _row(
        LeNet5, 61_706, "FedKF: LeCun et al., with ReLU and max pooling", 1, input=(1, 32, 32)
    ),
    "mlp": _row(
        MLP, 26_634, "ours, for CPUs: two hidden layers", 1, input=(1, 8, 8), hidden=(128, 128)
    ),
    "cnn2": _row(CNN, 19_562, _CPUS, input=(1, 8, 8), depth=2),
    "cnn3": _row(CNN, 56_554, _CPUS, input=(1, 8, 8), depth=3),
    "cnn4": _row(CNN, 93_546, _CPUS, input=(1, 8, 8), depth=4),
    "points-mlp-1": _row(MLP, 130, _FIGURE_1, 1, input=(2, 1, 1), hidden=(8,)),
    "points-mlp-2": _row(MLP, 218, _FIGURE_1, 1, input=(2, 1, 1), hidden=(8, 8)),
    "points-mlp-3": _row(MLP, 410, _FIGURE_1, 1, input=(2, 1, 1), hidden=(16, 8, 8)),
}


def parse(spec: str) -> tuple[str, float]:
    """``"resnet18@0.25"`` to ``("resnet18", 0.25)``; without a factor it is 1.

    Of ``"resnet18@0.25-up"`` the factor is a ``RoundedUp``. An unknown name or a factor outside
    (0, 16] is a ``ValueError``.
    """
    name, at, width = spec.partition("@")
    scales = architecture(name).scales
    if at and not scales:
        raise ValueError(f"model {spec!r}: {name} has no width factor")
    try:
        factor = float(width.removesuffix(UP)) if at else 1.0
    except ValueError:
        factor = math.nan
    if not 0 < factor <= WIDEST:
        raise ValueError(
            f"model {spec!r}: the width factor {width!r} must be a number in (0, {WIDEST:g}], "
            f"as in {name}@0.5"
        )
    return name, RoundedUp(factor) if width.endswith(UP) else factor


@lru_cache(maxsize=256)
def architecture(name: str) -> Architecture:
    """The architecture of a name: ours, a family's or a plug-in's.

    Raises ``ValueError``, one line: there is none of this name, or the plug-in is no network.
    """
    if name in MODELS:
        return MODELS[name]
    if (cut := _EXITS.fullmatch(name)) and cut[1] in MODELS:
        return _with_exits(name, cut[1], int(cut[3]))
    family, _, network = name.partition(":")
    if family in plugins.FAMILIES:
        build, published = external.of_family(family, network)
        return _outside(build, build, pretrained=published)
    found = plugins.find("models", name)
    if found is None:
        families = (f"{family}:NAME" for family in plugins.FAMILIES)
        there = plugins.choices("models", name, [*MODELS, *families])
        raise ValueError(f"model {name!r}: no architecture {name!r}; there are {there}")
    if isinstance(found, Architecture):
        return found
    if not callable(found):
        raise ValueError(
            f"model {name!r} is of type {type(found).__name__}; it should be a class or function "
            "that makes an nn.Module"
        )
    whole = isinstance(found, type) and issubclass(found, Classifier)
    tried = external.of_plugin(name, found)
    return _outside(tried, found if whole else tried, scales=whole)


_EXITS = re.compile(r"(.+)-(exits|linear)([1-9])")


def exits(spec: str) -> tuple[str, int]:
    """Which whole an architecture with exits is cut from, and how many it has; 0: it has none."""
    name, factor = parse(spec)
    found = _EXITS.fullmatch(name)
    if not found or found[1] not in MODELS:
        return "", 0
    return f"{found[1]}-{found[2]}@{factor:g}", int(found[3])


def _with_exits(name: str, base: str, depth: int) -> Architecture:
    """The first stages of one of ours, each with an exit. Raises ``ValueError``: it has fewer."""
    row = MODELS[base]
    kind: Kind = "linear" if "-linear" in name else "bottleneck"
    options = {} if row.stem == "own" else {"stem": row.stem}
    with torch.device("meta"), seeds.scope(0, "exits"):
        most = len(_stages(row.build(row.input, 2, 1.0, **options)))
    if depth > most:
        there = f"{base}-exits{most} at most" if most else "resnet10 to resnet34, cnn2 to cnn4 have"
        raise ValueError(f"model {name!r}: {base} has {most} stages for exits; {there}")

    def build(shape: Shape, classes: int, factor: float, **options: str) -> Classifier:
        net = row.build(shape, classes, factor, **options)
        assert isinstance(net, Split)
        return Exits(net, _stages(net), depth, kind)

    return Architecture(build, 0, f"{row.source}; DepthFL", row.input, row.stems)


def _stages(net: Classifier) -> list[nn.Module]:
    """The stages after which a network may have exits; none for most."""
    if isinstance(net, ResNet):
        return [net.layer1, net.layer2, net.layer3, net.layer4]
    return list(net.layer1) if isinstance(net, CNN) else []


def _outside(
    tried: external.ExternalModel,
    build: Callable[..., Classifier],
    *,
    pretrained: str = "",
    scales: bool = False,
) -> Architecture:
    return Architecture(
        build, 0, tried.name, (0, 0, 0), {"own": 1}, pretrained, scales, False, tried.check
    )


def check(
    spec: str, shape: Shape, classes: int, *, stem: str = "auto", pretrained: bool = False
) -> None:
    """Refuse what ``build`` could not make or what could not run, without building it.

    ``ValueError`` in one line: an unknown spec, fewer than 2 classes, an input smaller than the
    architecture takes, pretrained weights that do not exist.
    """
    name, _ = parse(spec)
    row = architecture(name)
    if classes < 2:
        raise ValueError(f"model {spec!r}: {classes} classes; at least 2 are needed")
    chosen = _stem(row, stem)
    least = row.stems[chosen]
    if min(shape[1:]) < least:
        size = "×".join(map(str, shape[1:]))
        kind = "" if chosen == "own" else f" (stem {chosen})"
        raise ValueError(
            f"model {spec!r}{kind}: input {size} is too small, it takes {least}×{least} or more"
        )
    if pretrained and not published(spec):
        known = ", ".join(k for k, row in MODELS.items() if row.pretrained)
        raise ValueError(
            f"model {spec!r}: no pretrained weights; at width 1 there are some for {known}"
        )
    if row.check:
        row.check(shape, classes)


def published(spec: str) -> bool:
    """Whether torchvision has ImageNet weights for ``spec``: some architectures, at width 1."""
    name, factor = parse(spec)
    return bool(architecture(name).pretrained) and factor == 1


def build(
    spec: str,
    shape: Shape,
    classes: int,
    stem: str = "auto",
    projection: bool = False,
    *,
    seed: int,
    name: tuple[str | int, ...] = ("init",),
    pretrained: bool = False,
) -> Classifier:
    """The network ``spec`` for images (C, H, W), in train mode, on torch's default device.

    The initial weights are a function of ``seed`` and ``name``; the global random state is left as
    it was. ``stem`` (``auto``, ``cifar``, ``imagenet``) matters to the architectures that have
    both; the others have one of their own. ``projection``: MOON's, before the head.

    Errors are those of ``check``, and a ``ValueError`` when ``pretrained`` weights (torchvision's,
    ImageNet) cannot be fetched.
    """
    check(spec, shape, classes, stem=stem, pretrained=pretrained)
    own, factor = parse(spec)
    row = architecture(own)
    chosen = _stem(row, stem)
    options = {} if chosen == "own" else {"stem": chosen}
    with seeds.scope(seed, *name):
        model = row.build(tuple(shape), classes, factor, **options)
    if pretrained:
        load_published(model, f"{row.pretrained}_Weights.IMAGENET1K_V1")
    if projection:
        with seeds.scope(seed, *name, "projection"):
            model = Projected(model)
    model.spec = spec
    return model


def count(model: nn.Module) -> int:
    """The number of parameters of ``model``; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())


@lru_cache(maxsize=1024)
def parameters(
    spec: str, shape: Shape, classes: int, stem: str = "auto", projection: bool = False
) -> int:
    """The number of parameters of a network that is not built; counted once in a process."""
    with torch.device("meta"):
        return count(build(spec, shape, classes, stem, projection, seed=0))


def smallest(specs: Iterable[str], shape: Shape, classes: int, *, stem: str = "auto") -> str:
    """The spec with the fewest parameters, the first of several: FedORION's common architecture."""
    return min(specs, key=lambda spec: parameters(spec, shape, classes, stem=stem))


def _stem(row: Architecture, stem: str) -> str:
    return stem if stem in row.stems else row.stem
