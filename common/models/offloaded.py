"""A network that is not needed for a while gives its memory back, and can have it again.

Its parameters stay the same objects with the same names and shapes, so that whoever holds one need
not know; until the network is woken they have no numbers but a NaN, which no result can hide.
"""

from typing import Generic, TypeVar, final

import torch
from torch import nn

N = TypeVar("N", bound=nn.Module)


@final
class OffloadedModel(Generic[N]):
    """Handle that frees and restores the parameters of ``net``. Buffers stay: they are small."""

    def __init__(self, net: N) -> None:
        self.net = net
        self._strides: list[tuple[int, ...]] = []

    def begin(self) -> None:
        """Let go of the parameters' numbers and of their gradients."""
        if self._strides:
            return
        for parameter in self.net.parameters():
            self._strides.append(parameter.stride())
            parameter.grad = None
            parameter.data = parameter.new_full((), torch.nan).expand(parameter.shape)

    def wake(self) -> bool:
        """Give the parameters any numbers again, laid out as before; whether they had none."""
        rested = bool(self._strides)
        for parameter, stride in zip(self.net.parameters(), self._strides, strict=rested):
            parameter.data = torch.empty_strided(
                parameter.shape, stride, dtype=parameter.dtype, device=parameter.device
            )
        self._strides = []
        return rested
