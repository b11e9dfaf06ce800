"""Generators that map noise to images for classifiers, or noise and a label to features."""

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier
from common.models.layers import Shape
from common.training import seeds
from common.training.task import Task

WIDTH = 128  #: channels of DAFL and FedKF
EPS = 0.8  #: DAFL passes .8 as BatchNorm's second argument, which is eps; FedKF uses the same
SLOPE = 0.2


@final
class Generator(nn.Module):
    """Generator of normalised images (n, C, H, W) from standard normal z (n, ``latent``).

    The layers are DAFL's (Chen et al., "Data-free learning of student networks"). The output is
    FedKF's: a sigmoid, then the data set's normalisation, as for real images. ``eps``: of the last
    two BatchNorm layers. ``bias``: whether the convolutions before them have a bias. DENSE's
    generator has 1e-5 and no bias.

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
        self.latent = latent
        self.start = (width, -(-self.size[0] // 4), -(-self.size[1] // 4))  # sides / 4, rounded up
        self.fc = nn.Linear(latent, self.start[0] * self.start[1] * self.start[2])
        self.bn0 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1, bias=bias)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width // 2, 3, 1, 1, bias=bias)
        self.bn2 = nn.BatchNorm2d(width // 2, eps)
        self.conv3 = nn.Conv2d(width // 2, channels, 3, 1, 1)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return (self.pixels(z) - self.mean) / self.std

    def pixels(self, z: Tensor) -> Tensor:
        """Return the images (n, C, H, W) before normalisation, in (0, 1), cropped to size."""
        x = self.bn0(self.fc(z).unflatten(1, self.start))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = F.leaky_relu(self.bn1(self.conv1(x)), SLOPE)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = F.leaky_relu(self.bn2(self.conv2(x)), SLOPE)
        height, width = self.size
        return torch.sigmoid(self.conv3(x))[:, :, :height, :width]

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
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            drawn = torch.randn(module.weight.shape, generator=generator)
            mean = 1.0 if isinstance(module, nn.BatchNorm2d) else 0.0
            module.weight.copy_(mean + 0.02 * drawn)
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


def new_feature_generator(task: Task, net: Classifier, noise: int, hidden: int) -> FeatureGenerator:
    """Return the common initial generator of features in front of ``net``'s head."""
    with seeds.scope(task.seed, "init", "generator"):
        return FeatureGenerator(noise, task.num_classes, net.head.in_features, hidden)
