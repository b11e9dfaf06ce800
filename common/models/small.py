"""Small networks: perceptrons for any input, CNNs for CPUs, and LeNet-5."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Split, pooled
from common.models.layers import Shape, he_fan_out, scale

SIDE = 32  #: pixels that LeNet-5's three 5×5 convolutions and two poolings reduce to one


@final
class MLP(Classifier):
    """Perceptron with hidden layers of the given widths; the last hidden layer gives the features.

    It serves inputs of any kind, such as FedORION's toy data of 2-D points. ReLU and then
    BatchNorm follow every layer but the last, as in FedORION, Figure 1.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, hidden: tuple[int, ...]
    ) -> None:
        super().__init__()
        inputs = math.prod(shape)
        layers: list[nn.Module] = []
        for outputs in (scale(width, factor) for width in hidden):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.BatchNorm1d(outputs)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x.flatten(1))
        return features


@final
class Dense(nn.Module):
    """Linear layer, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs, bias=False)
        self.bn = nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.fc(x)))


@final
class TableMLP(Split):
    """Perceptron for tables of ``depth`` hidden layers, all 64 wide.

    s_in and s_out are the outputs (n, 64) of the first and the last hidden layer, so that networks
    of all depths have a common split. A deeper network has all state-dict keys of a shallower one.
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.",)

    def __init__(self, shape: Shape, classes: int, factor: float, *, depth: int) -> None:
        super().__init__()
        width = scale(64, factor)
        self.stem = Dense(shape[0], width)
        self.layer1 = nn.Sequential(*(Dense(width, width) for _ in range(depth - 1)))
        self.head = nn.Linear(width, classes)

    def extractor(self, x: Tensor) -> Tensor:
        s_in: Tensor = self.stem(x)
        return s_in


@final
class Stage(nn.Module):
    """3×3 convolution, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


@final
class CNN(Split):
    """CNN with a stem and 1 to 4 equal middle stages: ``depth`` 2 to 5 convolutions.

    s_in has 32 maps of half the input's side, s_out 64 maps of a quarter. All depths share these
    shapes, and a deeper network has all state-dict keys of a shallower one. The family is therefore
    suitable for FedIN and layer-wise aggregation at a small scale.
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.",)

    def __init__(self, shape: Shape, classes: int, factor: float, *, depth: int) -> None:
        super().__init__()
        stem, width = scale(32, factor), scale(64, factor)
        self.stem = Stage(shape[0], stem, 1)
        self.pool = nn.MaxPool2d(2)
        middle = [Stage(stem, width, 2)]
        middle += [Stage(width, width, 1) for _ in range(depth - 2)]
        self.layer1 = nn.Sequential(*middle)
        self.head = nn.Linear(width, classes)
        he_fan_out(self)

    def extractor(self, x: Tensor) -> Tensor:
        s_in: Tensor = self.pool(self.stem(x))
        return s_in


@final
class FedAvgCNN(Classifier):
    """CNN of two 5×5 convolutions (32, 64) without padding and 512 features, for 16 pixels or more.

    Each convolution has a ReLU and a 2×2 max pooling; there is no normalisation. The networks of
    McMahan et al. 2017 ("Communication-Efficient Learning of Deep Networks from Decentralized
    Data"), as in PFLlib and HtFLlib, whose initial weights are torch's.
    """

    def __init__(self, shape: Shape, classes: int, factor: float) -> None:
        super().__init__()
        c1, c2, hidden = (scale(c, factor) for c in (32, 64, 512))
        self.conv1 = nn.Conv2d(shape[0], c1, 5)
        self.conv2 = nn.Conv2d(c1, c2, 5)
        self.fc1 = nn.Linear(
            c2 * math.prod(((side - 4) // 2 - 4) // 2 for side in shape[1:]), hidden
        )
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.relu(self.fc1(x.flatten(1)))


def enlarge(x: Tensor, side: int = SIDE) -> Tensor:
    """Enlarge images (n, C, h, w) to at least ``side`` pixels in height and width.

    Pixels are repeated by the largest integer factor that fits, then zeros are added around: 8×8
    becomes 32×32, 28×28 gets a margin of 2. Unlike interpolation, the gradient is deterministic on
    every device.
    """
    height, width = x.shape[-2:]
    repeat = max(1, side // max(height, width))
    if repeat > 1:
        x = x[:, :, :, None, :, None].expand(-1, -1, -1, repeat, -1, repeat)
        x = x.flatten(4).flatten(2, 3)
    height, width = max(0, side - x.shape[-2]), max(0, side - x.shape[-1])
    if height or width:
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
    return x


@final
class LeNet5(Classifier):
    """LeNet-5: three 5×5 convolutions (6, 16, 120) and 84 features; larger inputs end in a mean.

    The variant is FedKF's for EMNIST: ReLU, max pooling, no normalisation, enlarged to 32×32.
    """

    def __init__(self, shape: Shape, classes: int, factor: float) -> None:
        super().__init__()
        c1, c2, c3, hidden = (scale(c, factor) for c in (6, 16, 120, 84))
        self.conv1 = nn.Conv2d(shape[0], c1, 5)
        self.conv2 = nn.Conv2d(c1, c2, 5)
        self.conv3 = nn.Conv2d(c2, c3, 5)
        self.fc = nn.Linear(c3, hidden)
        self.head = nn.Linear(hidden, classes)

    def activations(self, x: Tensor) -> Tensor:
        """Return the last convolution's outputs (n, 120) for images (n, C, H, W)."""
        x = F.max_pool2d(torch.relu(self.conv1(enlarge(x))), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return pooled(torch.relu(self.conv3(x)))

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(self.activations(x)))

    def with_activations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        activations = self.activations(x)
        return self.head(torch.relu(self.fc(activations))), activations
