"""Initial weights of the CIFAR architectures and of FedKF's generator."""

from __future__ import annotations

from torch import nn


def he_convolutions(model: nn.Module) -> None:
    """Weights of convolutions ~ N(0, 2 / (k² c_out)); everything else stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def he_fan_out(model: nn.Module) -> None:
    """Convolutions ~ N(0, 2 / (k² c_out)), norms 1 and 0, linear biases 0.

    He et al., "Delving deep into rectifiers", equation 14, as FedKF, FedDF and Wide ResNet use it.
    """
    he_convolutions(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
