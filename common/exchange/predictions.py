"""Encoding of predictions for public images: probabilities, or logits with their range.

The numbers are coded by ``common/exchange/quantise.py`` in the wire's dtype.
"""

from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from common.exchange import quantise
from common.exchange.records import Records

LARGEST = 65504.0
"""Logits travel within ± this, float16's largest number; larger ones are cut off."""


class Predictions(Records, kind="predictions.Predictions"):
    """Part of a message: N images, C columns."""

    theta: Shaped[Tensor, "N C"]  #: the numbers in the wire's dtype
    low: float
    """What a byte 0 of theta stands for; 0 for probabilities."""
    high: float
    """What a byte 255 of theta stands for; 1 for probabilities."""

    def check_predictions(self, shape: tuple[int, int], dtype: str, *, probabilities: bool) -> None:
        """Raise a one-line ``ValueError`` unless theta is [N, C] of ``shape`` in the wire's
        ``dtype``, and rows of distributions or logits within ± ``LARGEST``.
        """
        quantise.check_dtype(self.theta, shape, dtype, "theta")
        if not -LARGEST <= self.low <= self.high <= LARGEST:
            raise ValueError(f"theta claims to reach from {self.low} to {self.high}")
        if probabilities:
            if (self.low, self.high) != (0.0, 1.0):
                raise ValueError(
                    f"theta is for {self.low} to {self.high}, probabilities for 0 to 1"
                )
            quantise.check_rows(self.theta, dtype, "theta")
        elif dtype != "uint8" and not bool((self.theta.abs() <= LARGEST).all()):
            most = float(self.theta.abs().max())
            raise ValueError(f"theta has the logit {most:g}, they end at {LARGEST:g}")

    def said(self, *, probabilities: bool) -> Tensor:
        """The numbers as float32 [N, C]; rows of probabilities sum to 1 again."""
        if probabilities:
            return quantise.decode_probabilities(self.theta)
        return quantise.decode(self.theta, self.low, self.high)


def spoken(values: Tensor, dtype: str, *, probabilities: bool) -> dict[str, Any]:
    """``values``, float32 [N, C], as the fields of ``Predictions``."""
    if probabilities:
        theta = quantise.encode(values.clamp(0, 1), dtype)
        return {"theta": theta, "low": 0.0, "high": 1.0}
    values = values.clamp(-LARGEST, LARGEST)
    low, high = float(values.min()), float(values.max())
    return {"theta": quantise.encode(values, dtype, low, high), "low": low, "high": high}
