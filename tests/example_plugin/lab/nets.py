"""A network as anybody would write it."""

import math

from torch import nn


class Shallow(nn.Sequential):
    """One hidden layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 16) -> None:
        hidden = nn.Linear(math.prod(shape), width)
        super().__init__(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(width, classes))
