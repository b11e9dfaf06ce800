"""One row of the table of architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from common.models.classifier import Classifier

#: (input shape (C, H, W), classes, width factor, keyword options: stem, pretrained) to a network
Build = Callable[..., Classifier]


@final
@dataclass(frozen=True)
class Architecture:
    """How a network is built, what it takes, and how large it is in its source."""

    build: Build
    params: int  #: trainable numbers for 10 classes and the default input
    input: tuple[int, int, int]  #: default (C, H, W)
    source: str
    #: smallest side in pixels for each stem, the default one first
    stems: Mapping[str, int] = field(default_factory=lambda: {"own": 1})
    pretrained: bool = False  #: whether torchvision has ImageNet weights for it

    @property
    def stem(self) -> str:
        """The stem that ``auto`` stands for."""
        return next(iter(self.stems))

    @property
    def smallest(self) -> int:
        """The smallest side in pixels that the default stem accepts."""
        return self.stems[self.stem]
