"""Release the memory of a network that is not used for a while, and allocate it again.

The parameters stay the same objects with the same names and shapes, so that references stay valid.
Meanwhile every value is NaN, so that accidental use is visible in any result.
"""

from typing import Generic, TypeVar, final

import torch
from torch import nn

N = TypeVar("N", bound=nn.Module)


@final
class OffloadedModel(Generic[N]):
    """Handle that frees and reallocates the parameters of ``net``. Buffers stay: they are small."""

    def __init__(self, net: N) -> None:
        self.net = net
        self._strides: list[tuple[int, ...]] = []

    def begin(self) -> None:
        """Free the memory of the parameters and their gradients."""
        if self._strides:
            return
        for parameter in self.net.parameters():
            self._strides.append(parameter.stride())
            parameter.grad = None
            parameter.data = parameter.new_full((), torch.nan).expand(parameter.shape)

    def wake(self) -> bool:
        """Allocate the parameters again, uninitialised, with their former strides.

        Returns whether they were released.
        """
        released = bool(self._strides)
        for parameter, stride in zip(self.net.parameters(), self._strides, strict=released):
            parameter.data = torch.empty_strided(
                parameter.shape, stride, dtype=parameter.dtype, device=parameter.device
            )
        self._strides = []
        return released
