"""Architectures by name, their parts and weights: ``build("resnet8", (3, 32, 32), 10, seed=0)``.

Each architecture takes images, signals, tables or texts; perceptrons take any numbers, and plug-ins
any kind.

A spec is a name from ``MODELS``, or a name and a width factor: ``resnet18@0.25`` has a quarter of
the channels everywhere (at least 4 in a layer). ``resnet18@0.25-up`` rounds them up instead, also
to fewer than 4. External networks (``torchvision:NAME``, ``timm:NAME``, plug-ins) have no factor.

``resnet18-exits2`` is the first two stages of a ResNet-18 with a classifier after each stage
(``exits.py``). ResNets of the ImageNet family (1 to 4 exits) and CNNs have it.
``resnet18-linear2`` is the same with plain linear classifiers.

``text-transformer-2`` and ``gpt-2`` are transformers of 2 layers and 4 heads, and
``text-transformer-4h8`` is one of 4 layers and 8 heads.

``gpt-2-lora4`` is a frozen ``gpt-2`` with adapters of rank 4 (``adapters.py``), and ``gpt-2-dense``
is one with dense updates of the same layers. Every network can have them. ``base`` is the network
of the Hugging Face folder ``adapter.base``.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, final

from torch import nn

from common import seeds
from common.data import kinds
from common.data.kinds import IMAGE, KINDS, SIGNAL, TABLE, TOKENS, Kind, OfKind
from common.models import external, hugging_face
from common.models.adapters import USUAL, Adapter, adapted
from common.models.classifier import Classifier, Pooled, Projected, Split
from common.models.convolutional import (
    CifarDenseNet,
    CifarResNet,
    DenseNet121,
    MobileNetV2,
    ResNet,
    ShuffleNetV2,
    WideResNet,
)
from common.models.exits import Exits
from common.models.exits import Kind as ExitKind
from common.models.layers import RoundedUp, Shape, single, sixteen
from common.models.shapes import without_values
from common.models.signals import (
    HARCNN,
    HEADS,
    PATCH,
    Recurrent,
    ResNet1d,
    Transformer,
    shortest,
)
from common.models.small import CNN, MLP, FedAvgCNN, LeNet5, TableMLP
from common.models.texts import (
    GPT,
    KERNELS,
    WIDTH,
    MeanText,
    RecurrentText,
    TextBiLSTM,
    TextCNN,
    TextTransformer,
)
from common.models.weights import load_published
from common.settings import plugins
from common.settings.plugins import ADAPTED, OF_FOLDER

WIDEST = 16.0  #: the largest width factor
MOST_NAMED = 6  #: networks that an error message names
NUMBERS = (IMAGE, SIGNAL, TABLE)  #: kinds of input that a perceptron takes
CLASSES = 10  #: outputs of the networks whose parameters ``Architecture`` tells
DEEPEST = 32  #: the most layers of a transformer for texts
UP = "-up"  #: suffix of a width factor that rounds channels up


@final
@dataclass(frozen=True)
class Architecture:
    """Description of an architecture: constructor, input shape, size and source."""

    build: Callable[..., Classifier]  #: takes input shape, classes, width factor; keyword: stem
    params: int  #: trainable parameters for ``outputs`` and the default input
    source: str
    input: Shape = (3, 32, 32)  #: default shape of a sample
    #: smallest side in pixels, or number of steps, for each stem, the default one first
    stems: Mapping[str, int] = field(default_factory=lambda: {"own": 4})
    pretrained: str = ""  #: torchvision's name of the network if it has ImageNet weights
    scales: bool = True  #: whether it accepts a width factor
    nests: bool = True  #: whether a narrow network's channels are the first of a wider one's
    check: Callable[[Shape, int], object] | None = None  #: trial run of an external network
    kinds: tuple[Kind, ...] = (IMAGE,)  #: kinds of input that it takes
    #: whether it has outputs of every token (next tokens) or of a sample; both if it can do both
    every: tuple[bool, ...] = (False,)
    rank: int = 0  #: of its adapters; 0: it has none, or dense updates

    @property
    def outputs(self) -> int:
        """Number of outputs for the default input: 10 classes, or the tokens of a vocabulary."""
        return kinds.vocab_of(self.input) if kinds.every_of(self.input) else CLASSES

    @property
    def stem(self) -> str:
        """The stem that ``auto`` stands for."""
        return next(iter(self.stems))

    @property
    def smallest(self) -> int:
        """The smallest side in pixels that the default stem accepts."""
        return self.stems[self.stem]


# Smallest sides: networks of three stages halve the side twice (4 pixels). ImageNet networks halve
# it three times after a cifar stem (8 pixels) and five times with their own stem, but the later
# halvings keep a single pixel. A comment marks rows where a layer fails below the limit.
_BOTH = {"imagenet": 8, "cifar": 8}
# Gates, heads, splits, concatenations and padded shortcuts shift channels by offsets that depend on
# the width, so that the channels of a narrow network are not the first ones of a wide one.
_MOVING = (
    *(ShuffleNetV2, CifarDenseNet, DenseNet121, Recurrent, Transformer),
    *(TextCNN, TextBiLSTM, TextTransformer, RecurrentText, GPT),
)


def _row(
    kind: Callable[..., Classifier],
    params: int,
    source: str,
    side: int | Mapping[str, int] = 4,
    *,
    input: Shape = (3, 32, 32),
    pretrained: str = "",
    every: tuple[bool, ...] = (False,),
    **options: object,
) -> Architecture:
    """Return a row of ``MODELS``; ``side``: the smallest side, in total or for each stem."""
    stems = {"own": side} if isinstance(side, int) else side
    moves = kind in _MOVING or "shortcut" in options
    takes = NUMBERS if kind is MLP else (kinds.of(input),)
    build = partial(kind, **options)
    return Architecture(
        build, params, source, input, stems, pretrained, nests=not moves, kinds=takes, every=every
    )


def _densenet(depth: int, bc: bool, params: int, source: str) -> Architecture:
    return _row(CifarDenseNet, params, source, depth=depth, bc=bc)


def _shufflenet(width: int, params: int, source: str, pretrained: str) -> Architecture:
    """Return a row; ``width``: channels of the first of three stages, doubled in each stage."""
    widths = (24, width, 2 * width, 4 * width, 1024)
    return _row(ShuffleNetV2, params, source, _BOTH, pretrained=pretrained, widths=widths)


def _har_cnn(depth: int, params: int, stride: int = 1) -> Architecture:
    kernel = 5 if depth == 3 else 9
    options: dict[str, Any] = {"depth": depth, "kernel": kernel, "stride": stride}
    return _row(HARCNN, params, _SEN, shortest(**options), input=(9, 128), **options)


def _recurrent(cell: type[nn.GRU] | type[nn.LSTM], layers: int, params: int) -> Architecture:
    return _row(Recurrent, params, _OURS, 1, input=(9, 128), cell=cell, layers=layers)


def _text(
    kind: Callable[..., Classifier],
    params: int,
    source: str,
    side: int = 1,
    steps: int = 64,
    vocab: int = 8192,
    every: tuple[bool, ...] = (False,),
    **options: Any,
) -> Architecture:
    """Return a row for texts; ``side``: fewest tokens; ``steps``, ``vocab``: default input."""
    shape = OfKind((steps,), TOKENS, vocab, every[0])
    return _row(kind, params, source, side, input=shape, every=every, **options)


_LAYERED = re.compile(r"(text-transformer|gpt)-([1-9]\d?)(?:h([1-9]\d?))?")


def _layered(name: str, params: int = 0) -> Architecture:
    """Return the transformer for texts of a name such as ``gpt-2`` or ``text-transformer-4h8``.

    Raises ``ValueError``, one line, for too many layers, or heads that do not divide the width.
    """
    family, layers, heads = _LAYERED.fullmatch(name).groups(str(HEADS))  # type: ignore[union-attr]
    options: dict[str, Any] = {"depth": int(layers), "heads": int(heads)}
    if options["depth"] > DEEPEST or WIDTH % options["heads"]:
        raise ValueError(
            f"model {name!r}: a transformer for texts has at most {DEEPEST} layers, and a number "
            f"of heads that divides its width of {WIDTH}"
        )
    if family == "gpt":
        return _text(GPT, params, _GPT, vocab=257, every=(True,), **options)
    return _text(TextTransformer, params, _TEXTS, **options)


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
_HTFL = "HtFLlib: the first stages of resnet10"
_CPUS = "ours, for CPUs"
_SEN = "HtFLlib: HtFE-sen, the HAR-CNNs"
_WANG = "ours, for CPUs; Wang et al., Time series classification"
_OURS = "ours, for signals on CPUs"
_TABLES = "ours, for tables on CPUs"
_TEXTS = "ours, for texts on CPUs"
_TXT = "HtFLlib: HtFE-txt, at a width of 64"
_KIM = "ours, for texts on CPUs; Kim, Convolutional neural networks for sentences"
_GPT = "nanoGPT, with a tied head, for next tokens"
_LEAF = "LEAF: the stacked LSTM for Shakespeare"

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
    # with 4 pixels the norm would see one pixel per channel and return a constant
    "resnet8-wide-gn": _row(CifarResNet, 1_227_594, _GN, 5, depth=8, first=64, norm=single),
    "resnet8-wide-bn": _row(CifarResNet, 1_227_594, _CUT, depth=8, first=64),
    "resnet8-gn16": _row(CifarResNet, 78_042, _GN16, depth=8, norm=sixteen),
    "resnet10": _resnet("1-1-1-1", 4_910_922, _FEDIN),
    "resnet10-cut1": _resnet("1", 84_170, _HTFL),
    "resnet10-cut2": _resnet("1-1", 314_954, _HTFL),
    "resnet10-cut3": _resnet("1-1-1", 1_235_274, _HTFL),
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
    "fedavg-cnn": _row(FedAvgCNN, 878_538, "PFLlib, HtFLlib: McMahan et al., the CNN", 16),
    "mlp": _row(
        MLP, 26_634, "ours, for CPUs: two hidden layers", 1, input=(1, 8, 8), hidden=(128, 128)
    ),
    "cnn2": _row(CNN, 19_562, _CPUS, input=(1, 8, 8), depth=2),
    "cnn3": _row(CNN, 56_554, _CPUS, input=(1, 8, 8), depth=3),
    "cnn4": _row(CNN, 93_546, _CPUS, input=(1, 8, 8), depth=4),
    "cnn5": _row(CNN, 130_538, _CPUS, input=(1, 8, 8), depth=5),
    "points-mlp-1": _row(MLP, 130, _FIGURE_1, 1, input=(2,), hidden=(8,)),
    "points-mlp-2": _row(MLP, 218, _FIGURE_1, 1, input=(2,), hidden=(8, 8)),
    "points-mlp-3": _row(MLP, 410, _FIGURE_1, 1, input=(2,), hidden=(16, 8, 8)),
    "har-cnn": _har_cnn(2, 2_256_010),
    "har-cnn-s2": _har_cnn(2, 879_754, stride=2),
    "har-cnn-s3": _har_cnn(2, 683_146, stride=3),
    "har-cnn1": _har_cnn(1, 2_499_658),
    "har-cnn1-s2": _har_cnn(1, 1_516_618, stride=2),
    "har-cnn1-s3": _har_cnn(1, 1_188_938, stride=3),
    "har-cnn3": _har_cnn(3, 2_156_682),
    "har-cnn3-s2": _har_cnn(3, 714_890, stride=2),
    "resnet1d-8": _row(ResNet1d, 113_194, _WANG, 2, input=(9, 128), depth=8),
    "resnet1d-14": _row(ResNet1d, 243_114, _WANG, 2, input=(9, 128), depth=14),
    "resnet1d-20": _row(ResNet1d, 373_034, _WANG, 2, input=(9, 128), depth=20),
    "gru": _recurrent(nn.GRU, 1, 15_050),
    "gru2": _recurrent(nn.GRU, 2, 40_010),
    "lstm": _recurrent(nn.LSTM, 1, 19_850),
    "lstm2": _recurrent(nn.LSTM, 2, 53_130),
    "transformer1d-2": _row(Transformer, 72_266, _OURS, PATCH, input=(9, 128), depth=2),
    "transformer1d-4": _row(Transformer, 139_210, _OURS, PATCH, input=(9, 128), depth=4),
    "table-mlp2": _row(TableMLP, 6_026, _TABLES, 1, input=(16,), depth=2),
    "table-mlp3": _row(TableMLP, 10_250, _TABLES, 1, input=(16,), depth=3),
    "table-mlp4": _row(TableMLP, 14_474, _TABLES, 1, input=(16,), depth=4),
    "text-fast": _text(MeanText, 529_098, f"{_TXT}, fastText", hidden=True),
    "text-lr": _text(MeanText, 524_938, f"{_TXT}, TextLogisticRegression", hidden=False),
    "text-cnn": _text(TextCNN, 621_302, _KIM, max(KERNELS)),
    "text-bilstm": _text(TextBiLSTM, 599_754, f"{_TXT}, BiLSTM_TextClassification"),
    "text-lstm2": _text(RecurrentText, 591_498, f"{_TXT}, LSTMNet", cell=nn.LSTM, dropout=0.2),
    "text-gru2": _text(RecurrentText, 574_858, f"{_TXT}, GRUNet", cell=nn.GRU, dropout=0.2),
    "text-transformer-1": _layered("text-transformer-1", 579_146),
    "text-transformer-2": _layered("text-transformer-2", 629_130),
    "text-transformer-4": _layered("text-transformer-4", 729_098),
    "text-transformer-4h8": _layered("text-transformer-4h8", 729_098),
    "gpt-1": _layered("gpt-1", 70_656),
    "gpt-2": _layered("gpt-2", 120_640),
    "gpt-4": _layered("gpt-4", 220_608),
    "char-lstm": _text(
        RecurrentText, 801_930, _LEAF, 1, 80, 80, (False, True), cell=nn.LSTM, vector=8, width=256
    ),
}


FOLDER = Architecture(
    hugging_face.build,
    0,
    "a Hugging Face folder",
    (),
    {"own": 1},
    scales=False,
    nests=False,
    kinds=(TOKENS,),
    every=(False, True),
)
"""Row of the network of ``adapter.base``, which is no part of lists of networks."""


def parse(spec: str) -> tuple[str, float]:
    """Split ``"resnet18@0.25"`` into ``("resnet18", 0.25)``; the default factor is 1.

    The factor of ``"resnet18@0.25-up"`` is a ``RoundedUp``. Raises ``ValueError`` for an unknown
    name or a factor outside (0, 16].
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
    """Return the architecture ``name`` from ``MODELS``, an external family or a plug-in.

    Raises ``ValueError``, one line, for an unknown name or a plug-in that is not a network.
    """
    if name in MODELS:
        return MODELS[name]
    if name == OF_FOLDER:
        return FOLDER
    if lora := ADAPTED.fullmatch(name):
        if ADAPTED.fullmatch(lora[1]):
            raise ValueError(f"model {name!r}: {lora[1]} has adapters already; one rank is allowed")
        return replace(architecture(lora[1]), rank=int(lora[2] or 0), nests=True)
    if re.search(r"-lora\d*$", name):
        raise ValueError(
            f"model {name!r}: the rank behind -lora should be 1 to 99999, as in "
            f"{re.sub('-lora.*', '', name)}-lora4"
        )
    if (cut := _EXITS.fullmatch(name)) and cut[1] in MODELS:
        return _with_exits(name, cut[1], int(cut[3]))
    if _LAYERED.fullmatch(name):
        return _layered(name)
    family, _, network = name.partition(":")
    if family in plugins.FAMILIES:
        build, published = external.of_family(family, network)
        return _external(build, build, pretrained=published, takes=(IMAGE,))
    plugin = plugins.find("models", name)
    if plugin is None:
        families = (f"{family}:NAME" for family in plugins.FAMILIES)
        choices = plugins.choices("models", name, [*MODELS, *families])
        raise ValueError(f"model {name!r}: no architecture {name!r}; there are {choices}")
    if isinstance(plugin, Architecture):
        return plugin
    if not callable(plugin):
        raise ValueError(
            f"model {name!r} is of type {type(plugin).__name__}; it should be a class or function "
            "that makes an nn.Module"
        )
    is_classifier = isinstance(plugin, type) and issubclass(plugin, Classifier)
    model = external.of_plugin(name, plugin)
    return _external(model, plugin if is_classifier else model, scales=is_classifier)


_EXITS = re.compile(r"(.+)-(exits|linear)([1-9])")


def frozen(spec: str) -> str:
    """Return the base of a network with adapters, ``gpt-2@2`` of ``gpt-2-lora4@2``; else empty."""
    name, at, width = spec.partition("@")
    lora = ADAPTED.fullmatch(name)
    return f"{lora[1]}{at}{width}" if lora else ""


def with_rank(base: str, rank: int) -> str:
    """Return the network with adapters of ``rank``, 0: with dense updates, above ``base``."""
    name, at, width = base.partition("@")
    return f"{name}-{f'lora{rank}' if rank else 'dense'}{at}{width}"


def rank(spec: str) -> int:
    """Return the rank of a network's adapters; 0: it has none, or dense updates."""
    return architecture(parse(spec)[0]).rank


def exits(spec: str) -> tuple[str, int]:
    """Return the base architecture and number of exits of ``spec``, or ``("", 0)`` without exits.

    The base includes the kind of exits and the width factor, as in ``resnet18-exits@0.5``.
    """
    name, factor = parse(spec)
    cut = _EXITS.fullmatch(name)
    if not cut or cut[1] not in MODELS:
        return "", 0
    return f"{cut[1]}-{cut[2]}@{factor:g}", int(cut[3])


def _with_exits(name: str, base: str, depth: int) -> Architecture:
    """Return ``base`` cut to ``depth`` stages with exits; ``ValueError`` if it has fewer."""
    row = MODELS[base]
    kind: ExitKind = "linear" if "-linear" in name else "bottleneck"
    options = {} if row.stem == "own" else {"stem": row.stem}
    with without_values(), seeds.scope(0, "exits"):
        most = len(_stages(row.build(row.input, 2, 1.0, **options)))
    if kind == "bottleneck" and row.kinds == (TABLE,):
        raise ValueError(f"model {name!r}: tables have no maps for exits; use {base}-linear{depth}")
    if depth > most:
        hint = f"{base}-exits{most} at most" if most else f"use {_WITH_STAGES}"
        raise ValueError(f"model {name!r}: {base} has {most} stages for exits; {hint}")

    def build(shape: Shape, classes: int, factor: float, **options: str) -> Classifier:
        net = row.build(shape, classes, factor, **options)
        assert isinstance(net, Split)
        return Exits(net, _stages(net), depth, kind)

    return Architecture(build, 0, f"{row.source}; DepthFL", row.input, row.stems, kinds=row.kinds)


_WITH_STAGES = "resnet10 to resnet34, cnn2 to cnn5, resnet1d-8 to -20, table-mlp2 to -mlp4"


def _stages(net: Classifier) -> list[nn.Module]:
    """Return the stages that can have an exit; most architectures have none."""
    if isinstance(net, ResNet):
        return [stage for stage in (net.layer1, net.layer2, net.layer3, net.layer4) if len(stage)]
    if isinstance(net, ResNet1d):
        return [net.layer1, net.layer2, net.layer3]
    return list(net.layer1) if isinstance(net, CNN | TableMLP) else []


def _external(
    model: external.ExternalModel,
    build: Callable[..., Classifier],
    *,
    pretrained: str = "",
    scales: bool = False,
    takes: tuple[Kind, ...] = KINDS,
) -> Architecture:
    return Architecture(
        *(build, 0, model.name, (), {"own": 1}, pretrained, scales, False, model.check, takes),
        every=(False, True),
    )


def check(
    spec: str, shape: Shape, classes: int, *, stem: str = "auto", pretrained: bool = False
) -> None:
    """Raise ``ValueError`` for a network that ``build`` cannot build or that cannot run.

    The message is one line. Causes: an unknown spec, no output, an input smaller than
    the architecture accepts, pretrained weights that do not exist. Nothing is built.
    """
    name, _ = parse(spec)
    row = architecture(name)
    if classes < 1:
        raise ValueError(f"model {spec!r}: {classes} outputs; at least 1 is needed")
    _check_kind(spec, row, shape)
    chosen = _stem(row, stem)
    least, sides = row.stems[chosen], shape[1:] or shape
    if min(sides) < least:
        size, wanted = ("×".join(map(str, of)) for of in (sides, [least] * len(sides)))
        kind = "" if chosen == "own" else f" (stem {chosen})"
        raise ValueError(
            f"model {spec!r}{kind}: input {size} is too small, it takes {wanted} or more"
        )
    if pretrained and not published(spec):
        known = ", ".join(k for k, row in MODELS.items() if row.pretrained)
        raise ValueError(
            f"model {spec!r}: no pretrained weights; at width 1 there are some for {known}"
        )
    if row.check:
        row.check(shape, classes)


def _check_kind(spec: str, row: Architecture, shape: Shape) -> None:
    """Raise ``ValueError``, one line, unless ``row`` takes samples of this kind."""
    kind = kinds.of(shape)
    if kind not in row.kinds:
        takes = " and ".join(kind.plural for kind in row.kinds)
        fitting = [name for name, row in MODELS.items() if kind in row.kinds]
        raise ValueError(
            f"model {spec!r} takes {takes}, but the data are {kind.describe(shape)}; fedmosaic "
            f"list models has networks for {kind.plural}, such as {', '.join(fitting[:MOST_NAMED])}"
        )
    if (every := kinds.every_of(shape)) not in row.every:
        each, wanted = ("text", "next tokens") if every else ("token", "classes")
        fitting = [name for name, row in MODELS.items() if every in row.every and kind in row.kinds]
        raise ValueError(
            f"model {spec!r} has outputs for each {each}, but the data have {wanted}; use "
            f"{', '.join(fitting[:MOST_NAMED])}"
        )


def published(spec: str) -> bool:
    """Return whether torchvision has ImageNet weights for ``spec``, which needs width 1."""
    name, factor = parse(spec)
    return bool(architecture(name).pretrained) and factor == 1


def build(
    spec: str,
    shape: Shape,
    classes: int,
    stem: str = "auto",
    projection: bool = False,
    feature_dim: int = 0,
    adapter: Adapter = USUAL,
    *,
    seed: int,
    name: tuple[str | int, ...] = ("init",),
    pretrained: bool = False,
    base: Classifier | None = None,
) -> Classifier:
    """Return the network ``spec`` for samples of ``shape``, in train mode.

    It is on torch's default device.

    The initial weights depend only on ``seed`` and ``name``; the global random state does not
    change. ``stem`` (``auto``, ``cifar``, ``imagenet``) is ignored by architectures with a single
    stem. ``projection`` adds MOON's projection before the head. ``feature_dim``: number of features
    that the head reads, pooled from the network's own; 0: the network's own. ``adapter``: settings
    of adapters. ``base``: network whose tensors a network with adapters shares, frozen, in place of
    a new one.

    Raises the errors of ``check``, and ``ValueError`` if ``pretrained`` weights (torchvision,
    ImageNet) cannot be fetched, for exits and tied heads with ``projection`` or ``feature_dim``, or
    for adapters that do not fit (``adapters.adapted``).
    """
    check(spec, shape, classes, stem=stem, pretrained=pretrained)
    known, factor = parse(spec)
    row = architecture(known)
    if plain := frozen(spec):
        form = (shape, classes, stem, projection, feature_dim, adapter)
        base = base or build(plain, *form, seed=seed, name=name, pretrained=pretrained)
        model = adapted(base, row.rank, adapter, seed, head=not kinds.every_of(shape))
        model.spec = spec
        return model
    chosen = _stem(row, stem)
    options = {} if chosen == "own" else {"stem": chosen}
    options |= {"folder": adapter.base} if row is FOLDER else {}
    with seeds.scope(seed, *name):
        model = row.build(shape, classes, factor, **options)
    if pretrained:
        load_published(model, f"{row.pretrained}_Weights.IMAGENET1K_V1")
    if (isinstance(model, Exits) or model.tied) and (projection or feature_dim):
        key = "projection" if projection else "feature-dim"
        why = "a tied head, which" if model.tied else "exits, whose heads"
        raise ValueError(f"model {spec!r} has {why} {key} cannot change")
    if projection:
        with seeds.scope(seed, *name, "projection"):
            model = Projected(model)
    if feature_dim:
        with seeds.scope(seed, *name, "feature-dim"):
            model = Pooled(model, feature_dim)
    model.spec = spec
    return model


def count(model: nn.Module) -> int:
    """Return the number of parameters of ``model``, without buffers."""
    return sum(parameter.numel() for parameter in model.parameters())


@lru_cache(maxsize=1024)
def parameters(
    spec: str,
    shape: Shape,
    classes: int,
    stem: str = "auto",
    projection: bool = False,
    feature_dim: int = 0,
    adapter: Adapter = USUAL,
) -> int:
    """Return the number of parameters of ``spec``, without frozen ones, not building it; cached."""
    with without_values():
        form = (shape, classes, stem, projection, feature_dim, adapter)
        return count(build(spec, *form, seed=0))


def smallest(
    specs: Iterable[str],
    shape: Shape,
    classes: int,
    stem: str = "auto",
    projection: bool = False,
    feature_dim: int = 0,
    adapter: Adapter = USUAL,
) -> str:
    """Return the first spec with the fewest parameters: FedORION's common architecture."""
    form = (shape, classes, stem, projection, feature_dim, adapter)
    return min(specs, key=lambda spec: parameters(spec, *form))


def _stem(row: Architecture, stem: str) -> str:
    return stem if stem in row.stems else row.stem
