"""Convolutional networks: ResNets (for small images, wide, ImageNet), DenseNets, MobileNetV2,
ShuffleNetV2 and DenseNet-121.

ResNets of the ImageNet family have torchvision's state-dict keys, except that ``fc`` is ``head``.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Split, pooled
from common.models.layers import (
    Norm,
    Shape,
    Stem,
    first_convolution,
    he_convolutions,
    he_fan_out,
    scale,
    stages,
)

GROWTH = 12  #: growth rate of the DenseNets for CIFAR
Shortcut = Literal["projection", "padding"]


@final
class Padding(nn.Module):
    """Parameter-free shortcut (option A): every second pixel, zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.extra = outputs - inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


@final
class Block(nn.Module):
    """Residual block: conv - norm - ReLU - conv - norm, plus the shortcut, then ReLU.

    ``convolution``: its class, for images or for signals.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        norm: Norm,
        shortcut: Shortcut,
        convolution: Callable[..., nn.Module] = nn.Conv2d,
    ) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample: nn.Module
        if stride == 1 and inputs == outputs:
            self.downsample = nn.Identity()
        elif shortcut == "padding":
            self.downsample = Padding(inputs, outputs, stride)
        else:
            first = convolution(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(first, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


@final
class CifarResNet(Classifier):
    """ResNet for small images: a 3×3 stem and three stages at full, half and quarter resolution.

    ``depth`` is 6n + 2 with n blocks per stage (He et al., "Deep residual learning", section 4.2).
    The features are the mean maps of the last stage. FedDF uses 16-32-64 channels, FedKF a wide
    64-128-256 ResNet-8 with GroupNorm. The order conv - norm - ReLU and the initialisation are
    those of FedKF's code.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        factor: float,
        *,
        depth: int,
        first: int = 16,
        norm: Norm = nn.BatchNorm2d,
        shortcut: Shortcut = "projection",
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        assert rest == 0, depth
        widths = [scale(first * 2**stage, factor) for stage in range(3)]
        self.conv1 = nn.Conv2d(shape[0], widths[0], 3, 1, 1, bias=False)
        self.bn1 = norm(widths[0])
        self.layer1, self.layer2, self.layer3 = stages(
            partial(Block, norm=norm, shortcut=shortcut), widths[0], widths, [blocks] * 3
        )
        self.head = nn.Linear(widths[-1], classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return pooled(self.layer3(self.layer2(self.layer1(x))))


@final
class Preactivated(nn.Module):
    """Pre-activation block: norm - ReLU - conv, twice.

    If the shape changes, a 1×1 convolution of the first ReLU's output is the shortcut.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = torch.relu(self.bn1(x))
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(activated))))
        return out + (x if self.shortcut is None else self.shortcut(activated))


@final
class WideResNet(Classifier):
    """Wide ResNet WRN-depth-widen: depth 6n + 4, widths 16, 16·widen, 32·widen, 64·widen.

    Zagoruyko and Komodakis, section 2: three groups of pre-activation blocks.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, depth: int, widen: int
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        assert rest == 0, depth
        stem = scale(16, factor)
        widths = [scale(channels * widen, factor) for channels in (16, 32, 64)]
        self.conv1 = nn.Conv2d(shape[0], stem, 3, 1, 1, bias=False)
        self.layer1, self.layer2, self.layer3 = stages(Preactivated, stem, widths, [blocks] * 3)
        self.bn = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return pooled(torch.relu(self.bn(x)))


@final
class ResNet(Split):
    """ImageNet ResNet with stages of torchvision's widths: 64, 128, 256, 512 channels.

    ``blocks``: blocks per stage; with fewer than four stages the last ones are empty. The family
    has ResNet-18 and 34, and FedIN's 10, 14, 18, 22, 26, with one stem and one set of stage widths.
    Hence s_in (64×8×8 for 32×32 images) and s_out (512×1×1) have the same shape for all depths of
    four stages. A name such as ``layer2.1.conv1`` is the same layer in all networks (FedIN, section
    III); layer-wise aggregation matches these names.
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.", "layer2.", "layer3.", "layer4.")

    def __init__(
        self,
        shape: Shape,
        classes: int,
        factor: float,
        *,
        blocks: tuple[int, ...],
        stem: Stem,
    ) -> None:
        super().__init__()
        widths = [scale(64 * 2**stage, factor) for stage in range(len(blocks))]
        kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
        self.conv1 = nn.Conv2d(shape[0], widths[0], kernel, stride, padding, bias=False)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        self.bn1 = nn.BatchNorm2d(widths[0])
        empty = [nn.Sequential() for _ in range(4 - len(blocks))]
        block = partial(Block, norm=nn.BatchNorm2d, shortcut="projection")
        full = stages(block, widths[0], widths, blocks)
        self.layer1, self.layer2, self.layer3, self.layer4 = full + empty
        self.head = nn.Linear(widths[-1], classes)
        he_convolutions(self)

    def extractor(self, x: Tensor) -> Tensor:
        s_in: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return s_in


@final
class Layer(nn.Module):
    """Dense layer: norm - ReLU - conv that adds ``growth`` channels.

    With ``bottleneck`` a 1×1 convolution to 4 × growth channels precedes it.
    """

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        if bottleneck:
            narrow = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
            steps += [nn.BatchNorm2d(inputs), nn.ReLU(), narrow]
            inputs = 4 * growth
        steps += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, 1, 1, bias=False)]
        self.steps = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.steps(x)], 1)


@final
class CifarDenseNet(Classifier):
    """DenseNet with three blocks; ``bc`` adds bottlenecks and transitions that halve the channels.

    Huang et al., "Densely connected convolutional networks", sections 3 and 4.2.
    """

    def __init__(self, shape: Shape, classes: int, factor: float, *, depth: int, bc: bool) -> None:
        super().__init__()
        layers, rest = divmod(depth - 4, 6 if bc else 3)
        assert rest == 0, depth
        growth = scale(GROWTH, factor)
        channels = 2 * growth if bc else scale(16, factor)
        self.conv1 = nn.Conv2d(shape[0], channels, 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for block in range(3):
            for _ in range(layers):
                blocks.append(Layer(channels, growth, bc))
                channels += growth
            if block < 2:
                after = channels // 2 if bc else channels
                convolution = nn.Conv2d(channels, after, 1, bias=False)
                norm = nn.BatchNorm2d(channels)
                blocks.append(nn.Sequential(norm, nn.ReLU(), convolution, nn.AvgPool2d(2)))
                channels = after
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        return pooled(torch.relu(self.bn(self.blocks(self.conv1(x)))))


@final
class MobileNetV2(Classifier):
    """MobileNetV2: 1280 features after dropout 0.2; the factor is torchvision's ``width_mult``."""

    def __init__(self, shape: Shape, classes: int, factor: float, *, stem: Stem) -> None:
        super().__init__()
        from common.vision import torchvision

        net = torchvision.models.MobileNetV2(num_classes=classes, width_mult=factor)
        net.features[0][0] = first_convolution(net.features[0][0], shape[0], stem)
        self.trunk = net.features
        self.dropout, self.head = net.classifier

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(pooled(self.trunk(x)))
        return features


@final
class ShuffleNetV2(Classifier):
    """ShuffleNetV2: 1024 features; ``widths``: channels of stem, three stages, last convolution.

    The stem ``cifar`` has no pooling, as in FedDF.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, widths: tuple[int, ...], stem: Stem
    ) -> None:
        super().__init__()
        from common.vision import torchvision

        scaled = [scale(width, factor, multiple=2) for width in widths]
        net = torchvision.models.ShuffleNetV2([4, 8, 4], scaled, num_classes=classes)
        self.conv1 = net.conv1
        self.conv1[0] = first_convolution(net.conv1[0], shape[0], stem)
        self.maxpool = net.maxpool if stem == "imagenet" else nn.Identity()
        self.stage2, self.stage3, self.stage4 = net.stage2, net.stage3, net.stage4
        self.conv5 = net.conv5
        self.head = net.fc

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        return pooled(self.conv5(self.stage4(self.stage3(self.stage2(x)))))


@final
class DenseNet121(Classifier):
    """DenseNet-121: growth 32, blocks of 6, 12, 24 and 16 layers, 1024 features."""

    def __init__(self, shape: Shape, classes: int, factor: float, *, stem: Stem) -> None:
        super().__init__()
        from common.vision import torchvision

        net = torchvision.models.DenseNet(
            growth_rate=scale(32, factor), num_init_features=scale(64, factor), num_classes=classes
        )
        net.features.conv0 = first_convolution(net.features.conv0, shape[0], stem)
        if stem == "cifar":
            net.features.pool0 = nn.Identity()
        self.trunk = net.features
        self.head = net.classifier

    def features(self, x: Tensor) -> Tensor:
        return pooled(torch.relu(self.trunk(x)))
