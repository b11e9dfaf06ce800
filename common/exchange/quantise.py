"""Encoding of predictions and confidences in messages: float32, float16 or one byte each.

A byte holds low + (high − low) · q / 255 for q in 0 … 255. Probabilities have low = 0, high = 1.
"""

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}
STEPS = {"float32": 1e-6, "float16": 2.0**-11, "uint8": 1 / 255}
"""Largest step between neighbouring values in [0, 1], by dtype."""
LEVELS = 255


def encode(x: Tensor, dtype: str, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return float32 values in [low, high] in the wire's ``dtype``, rounded to the nearest."""
    x = x.detach().cpu().contiguous()
    if dtype != "uint8":
        return x.to(DTYPES[dtype])
    spread = high - low if high > low else 1.0
    return ((x - low) / spread * LEVELS).round().clamp(0, LEVELS).to(torch.uint8)


def decode(values: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return encoded values as float32; the inverse of ``encode`` except for rounding."""
    if values.dtype != torch.uint8:
        return values.to(torch.float32)
    return values.to(torch.float32) / LEVELS * (high - low) + low


def decode_probabilities(values: Tensor, *, one_each: bool = True) -> Tensor:
    """Return probabilities [n, C] as float32; ``one_each``: rows are divided by their sums."""
    p = decode(values)
    return p / p.sum(1, keepdim=True) if one_each else p


def check_dtype(values: Tensor, shape: tuple[int, ...], dtype: str, name: str) -> None:
    """Raise a one-line ``ValueError`` unless ``values`` has this shape and dtype."""
    if tuple(values.shape) != shape or values.dtype != DTYPES[dtype]:
        got = f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
        raise ValueError(f"{name} is {got}, expected {dtype}{list(shape)}")


def check_unit(values: Tensor, name: str) -> None:
    """Raise a one-line ``ValueError`` unless all values are in [0, 1]."""
    if values.numel() == 0 or values.dtype == torch.uint8:
        return
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(f"{name} reaches from {low:g} to {high:g}, it must stay in [0, 1]")


def check_rows(values: Tensor, dtype: str, name: str, *, one_each: bool = True) -> None:
    """Raise a one-line ``ValueError`` unless every row [C] is a distribution up to rounding.

    ``one_each``: false for probabilities of labels, which need not sum to 1.
    """
    check_unit(values, name)
    if not one_each:
        return
    sums = decode(values).sum(1)
    slack = 1e-3 + values.shape[1] * STEPS[dtype] / 2
    off = (sums - 1).abs()
    if bool((off > slack).any()) or bool((sums <= 0).any()):
        row = int(off.argmax())
        raise ValueError(f"{name}: row {row} sums to {float(sums[row]):.4g}, not to 1")
