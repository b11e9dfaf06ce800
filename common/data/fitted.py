"""Images of another data set, brought to the shape of the task's."""

from __future__ import annotations

import torch
from torch import Tensor

from common.data.dataset import converted, interpolated

LUMA = (0.299, 0.587, 0.114)
"""Red, green and blue in grey (ITU-R BT.601)."""


def fitted(x: Tensor, shape: tuple[int, int, int], what: str) -> Tensor:
    """Images x uint8 (N, c, h, w) as uint8 (N, C, H, W) of ``shape``.

    Colour becomes grey by ``LUMA``, grey becomes colour by three equal channels; then bilinear,
    antialiased when shrinking. Images that fit are left as they are.

    Raises a one-line ``ValueError`` that begins with ``what``: points, or channels that are neither
    grey nor colour and not those of the task.
    """
    if tuple(x.shape[1:]) == shape:
        return x
    has, wants = x.shape[1], shape[0]
    if x.dtype != torch.uint8 or (has != wants and {has, wants} != {1, 3}):
        raise ValueError(
            f"{what} has {str(x.dtype).removeprefix('torch.')} samples {tuple(x.shape[1:])}, the "
            f"data set {shape}; grey and colour images (1 or 3 channels of bytes) can be fitted"
        )

    def convert(images: Tensor) -> Tensor:
        if has > wants:
            images = (images * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        if images.shape[-2:] != shape[1:]:
            images = interpolated(images, shape[1:])
        return images.expand(-1, wants, -1, -1)

    return converted(x, shape, convert)
