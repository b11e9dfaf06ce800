"""Generators that map noise to samples for classifiers, or noise and a label to features."""

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from common.data import kinds
from common.data.kinds import IMAGE, per_channel
from common.models.layers import Shape

WIDTH = 128  #: channels of DAFL and FedKF
EPS = 0.8  #: DAFL passes .8 as BatchNorm's second argument, which is eps; FedKF uses the same
SLOPE = 0.2
WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Linear, _BatchNorm)  #: layers with weights in a generator


@final
class Generator(nn.Module):
    """Generator of normalised samples (n, C, ...) from standard normal z (n, ``latent``).

    The layers are DAFL's (Chen et al., "Data-free learning of student networks"). The output for
    images is FedKF's: a sigmoid, then the data set's normalisation, as for real images. ``eps``: of
    the last two BatchNorm layers. ``bias``: whether the convolutions before them have a bias.
    DENSE's generator has 1e-5 and no bias.

    Signals and tables have no range like the pixels'. Their output has no sigmoid and ends as in
    DAFL with a BatchNorm without parameters: mean 0 and variance 1 per channel, as the normalised
    data. The convolutions are 1-D for signals; a table has linear layers and no upsampling.

    FedKF uses 100 latent numbers for EMNIST (1,049,985 parameters at 1×32×32) and 1000 for CIFAR
    (8,423,939). ``width`` below 128 is for CPUs. ``mean`` and ``std``: normalisation of the real
    images, one value per channel (pixels in [0, 1]).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        latent: int,
        shape: Shape,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        width: int = WIDTH,
        eps: float = EPS,
        bias: bool = True,
    ) -> None:
        super().__init__()
        channels, *self.size = shape
        self.latent, self.images = latent, kinds.of(shape) is IMAGE
        norm: type[nn.BatchNorm1d | nn.BatchNorm2d] = (
            nn.BatchNorm2d if self.images else nn.BatchNorm1d
        )
        self.start = (width, *(-(-side // 4) for side in self.size))  # sides / 4, rounded up
        self.fc = nn.Linear(latent, math.prod(self.start))
        self.bn0 = norm(width)
        self.conv1 = self._convolution(width, width, bias)
        self.bn1 = norm(width, eps)
        self.conv2 = self._convolution(width, width // 2, bias)
        self.bn2 = norm(width // 2, eps)
        self.conv3 = self._convolution(width // 2, channels)
        self.bn3 = nn.Identity() if self.images else norm(channels, affine=False)
        like = torch.empty(1, *shape)
        self.register_buffer("mean", per_channel(mean, like)[None], persistent=False)
        self.register_buffer("std", per_channel(std, like)[None], persistent=False)

    def _convolution(self, inputs: int, outputs: int, bias: bool = True) -> nn.Module:
        if not self.size:
            return nn.Linear(inputs, outputs, bias)
        kind = nn.Conv2d if self.images else nn.Conv1d
        return kind(inputs, outputs, 3, 1, 1, bias=bias)

    def forward(self, z: Tensor) -> Tensor:
        if not self.images:
            standardised: Tensor = self.bn3(self._cropped(self._output(z)))
            return standardised
        return (self.pixels(z) - self.mean) / self.std

    def pixels(self, z: Tensor) -> Tensor:
        """Return the samples (n, C, ...) before normalisation, images in (0, 1)."""
        if not self.images:
            return self.forward(z) * self.std + self.mean
        return self._cropped(torch.sigmoid(self._output(z)))

    def _output(self, z: Tensor) -> Tensor:
        """Return the last layer's output, with sides that are multiples of 4."""
        x = self._enlarged(self.bn0(self.fc(z).unflatten(1, self.start)))
        x = self._enlarged(F.leaky_relu(self.bn1(self.conv1(x)), SLOPE))
        output: Tensor = self.conv3(F.leaky_relu(self.bn2(self.conv2(x)), SLOPE))
        return output

    def _cropped(self, x: Tensor) -> Tensor:
        for axis, side in enumerate(self.size, 2):
            x = x.narrow(axis, 0, side)
        return x

    def _enlarged(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="nearest") if self.size else x

    def latents(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n latent vectors ~ N(0, I) from ``generator`` on its device."""
        return torch.randn(n, self.latent, generator=generator, device=generator.device)


@torch.no_grad()
def redraw(net: nn.Module, generator: torch.Generator) -> None:
    """Draw convolutions and linear layers ~ N(0, 0.02²), norms' weights ~ N(1, 0.02²); biases 0.

    This is the initialisation of DCGAN (Radford et al. 2016), which DENSE repeats for its generator
    before each batch.
    """
    for module in net.modules():
        if isinstance(module, WEIGHTED) and module.weight is not None:
            normal = torch.randn(module.weight.shape, generator=generator)
            mean = 1.0 if isinstance(module, _BatchNorm) else 0.0
            module.weight.copy_(mean + 0.02 * normal)
            if module.bias is not None:
                module.bias.zero_()


@final
class FeatureGenerator(nn.Module):
    """Generator of a classifier head's inputs [n, ``features``] ≥ 0 from z [n, ``noise``], y [n].

    FedGen's layers: noise and one-hot label, one hidden layer with BatchNorm and ReLU, one layer
    with ReLU (Zhu et al. 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated
    Learning").
    """

    def __init__(self, noise: int, classes: int, features: int, hidden: int) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        self.fc = nn.Linear(noise + classes, hidden)
        self.bn = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], dim=1)
        return torch.relu(self.out(torch.relu(self.bn(self.fc(x)))))

    def latents(
        self, n: int, kind: Literal["uniform", "normal"], generator: torch.Generator
    ) -> Tensor:
        """Draw n noise vectors, in [0, 1) or standard normal, on the device of ``generator``."""
        draw = torch.rand if kind == "uniform" else torch.randn
        return draw(n, self.noise, generator=generator, device=generator.device)
