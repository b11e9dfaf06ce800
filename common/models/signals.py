"""Networks for signals (n, C, T): CNNs, ResNets, recurrent networks and a transformer."""

from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Split, pooled
from common.models.convolutional import Block
from common.models.layers import Shape, he_fan_out, scale, stages

HEADS = 4  #: attention heads
PATCH = 5  #: steps in a token of the transformer


@final
class HARCNN(Classifier):
    """CNN of one to three 1-D convolutions (32, 64, 128) and hidden layers of 1024 and 512.

    Each convolution has no padding, a ReLU and a max pooling of 2. The sensor networks ``HARCNN``,
    ``HARCNN1`` and ``HARCNN3`` of HtFLlib (``flcore/trainmodel/models.py``), which convolve
    (C, 1, T) with kernels (1, k). The number of inputs of the hidden layers follows from T.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, depth: int, kernel: int, stride: int
    ) -> None:
        super().__init__()
        channels, steps = shape
        convolutions: list[nn.Module] = []
        for width in (32, 64, 128)[:depth]:
            outputs = scale(width, factor)
            convolutions.append(nn.Conv1d(channels, outputs, kernel, stride))
            channels, steps = outputs, shorter(steps, kernel, stride)
        wide, features = scale(1024, factor), scale(512, factor)
        self.convolutions = nn.ModuleList(convolutions)
        self.fc1 = nn.Linear(channels * steps, wide)
        self.fc2 = nn.Linear(wide, features)
        self.head = nn.Linear(features, classes)

    def features(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.max_pool1d(torch.relu(convolution(x)), 2)
        return torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1)))))


def shorter(steps: int, kernel: int, stride: int) -> int:
    """Return the number of steps after a convolution without padding and a max pooling of 2."""
    return ((steps - kernel) // stride + 1) // 2


def shortest(depth: int, kernel: int, stride: int) -> int:
    """Return the fewest steps of a signal for which a ``HARCNN`` has an output."""
    steps = 1
    for _ in range(depth):
        steps = (2 * steps - 1) * stride + kernel
    return steps


@final
class ResNet1d(Split):
    """ResNet for signals: a stem of stride 2 and three stages of 32, 64 and 128 channels.

    He et al., "Deep residual learning", with 1-D convolutions of 3 steps, as in Wang et al. 2017
    ("Time series classification from scratch"), at smaller widths. ``depth`` is 6n + 2 with n
    blocks per stage. All depths share the shapes of s_in (32 × T/2) and s_out (128 × T/8).
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.", "layer2.", "layer3.")

    def __init__(self, shape: Shape, classes: int, factor: float, *, depth: int) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        assert rest == 0, depth
        widths = [scale(width, factor) for width in (32, 64, 128)]
        self.conv1 = nn.Conv1d(shape[0], widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm1d(widths[0])
        block = partial(Block, norm=nn.BatchNorm1d, shortcut="projection", convolution=nn.Conv1d)
        self.layer1, self.layer2, self.layer3 = stages(block, widths[0], widths, [blocks] * 3)
        self.head = nn.Linear(widths[-1], classes)
        he_fan_out(self)

    def extractor(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn1(self.conv1(x)))


@final
class Recurrent(Classifier):
    """GRU or LSTM over the steps of a signal; the features are the mean output over the steps."""

    def __init__(
        self,
        shape: Shape,
        classes: int,
        factor: float,
        *,
        cell: type[nn.GRU] | type[nn.LSTM],
        layers: int,
    ) -> None:
        super().__init__()
        hidden = scale(64, factor)
        self.rnn = cell(shape[0], hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.rnn(x.transpose(1, 2))[0]
        return outputs.mean(1)


@final
class Attention(nn.Module):
    """Layer of a transformer: self-attention, then a perceptron, each after LayerNorm and added.

    The perceptron is ``wide`` times as wide as the tokens. Dropout is on the softmax, in the
    perceptron and on both results, as in ``nn.TransformerEncoderLayer``. The softmax is written
    out, so that training and evaluation run the same deterministic kernels.
    """

    def __init__(
        self, width: int, *, heads: int = HEADS, wide: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        inner = nn.Sequential(nn.GELU(), nn.Dropout(dropout))
        self.mlp = nn.Sequential(
            nn.Linear(width, wide * width), inner, nn.Linear(wide * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the tokens (n, tokens, width) after this layer.

        ``mask``: whether a token (axis -2) attends to another (axis -1), in a shape that
        broadcasts to (n, heads, tokens, tokens); None: it attends to all.
        """
        n, tokens, width = x.shape
        each = width // self.heads
        q, k, v = (
            self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, each).permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.transpose(2, 3) / each**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        mixed = self.dropout(torch.softmax(scores, dim=3)) @ v
        after: Tensor = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(n, tokens, width)))
        after = after + self.dropout(self.mlp(self.norm2(after)))
        return after


@final
class Transformer(Classifier):
    """Transformer over patches of 5 steps, 64 wide; the features are the mean over the tokens.

    Vaswani et al. 2017, "Attention is all you need", with learnt positions and LayerNorm before
    each part.
    """

    def __init__(self, shape: Shape, classes: int, factor: float, *, depth: int) -> None:
        super().__init__()
        width = scale(64, factor, multiple=HEADS)
        self.patches = nn.Conv1d(shape[0], width, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn(shape[1] // PATCH, width))
        self.layers = nn.Sequential(*(Attention(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        tokens = self.layers(self.patches(x).transpose(1, 2) + self.positions)
        return pooled(self.norm(tokens).transpose(1, 2))
