"""Encoding of predictions for public images: probabilities, or logits with their range.

``common/exchange/quantise.py`` encodes the numbers in the wire's dtype.
"""

from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from common.exchange import quantise
from common.exchange.records import Records

LARGEST = 65504.0
"""Logits are clipped to ± this value, the largest number of float16."""


class Predictions(Records, kind="predictions.Predictions"):
    """Part of a message: predictions for N images in C columns."""

    theta: Shaped[Tensor, "N C"]  #: numbers in the wire's dtype
    low: float
    """Value of byte 0 in theta; 0 for probabilities."""
    high: float
    """Value of byte 255 in theta; 1 for probabilities."""

    def check_predictions(
        self, shape: tuple[int, int], dtype: str, *, probabilities: bool, one_each: bool = True
    ) -> None:
        """Raise a one-line ``ValueError`` unless theta has ``shape`` [N, C], the wire's ``dtype``
        and one distribution in each row, or logits within ± ``LARGEST``. ``one_each``: as for
        ``quantise.check_rows``.
        """
        quantise.check_dtype(self.theta, shape, dtype, "theta")
        if not -LARGEST <= self.low <= self.high <= LARGEST:
            raise ValueError(f"theta claims to reach from {self.low} to {self.high}")
        if probabilities:
            if (self.low, self.high) != (0.0, 1.0):
                raise ValueError(
                    f"theta is for {self.low} to {self.high}, probabilities for 0 to 1"
                )
            quantise.check_rows(self.theta, dtype, "theta", one_each=one_each)
        elif dtype != "uint8" and not bool((self.theta.abs() <= LARGEST).all()):
            most = float(self.theta.abs().max())
            raise ValueError(f"theta has the logit {most:g}, at most {LARGEST:g} is allowed")

    def said(self, *, probabilities: bool, one_each: bool = True) -> Tensor:
        """Return the predictions as float32 [N, C].

        ``one_each``: rows of probabilities sum to 1 again; false for probabilities of labels.
        """
        if probabilities:
            return quantise.decode_probabilities(self.theta, one_each=one_each)
        return quantise.decode(self.theta, self.low, self.high)


def encoded(values: Tensor, dtype: str, *, probabilities: bool) -> dict[str, Any]:
    """Return the fields of ``Predictions`` for ``values``, float32 [N, C]."""
    if probabilities:
        theta = quantise.encode(values.clamp(0, 1), dtype)
        return {"theta": theta, "low": 0.0, "high": 1.0}
    values = values.clamp(-LARGEST, LARGEST)
    low, high = float(values.min()), float(values.max())
    return {"theta": quantise.encode(values, dtype, low, high), "low": low, "high": high}
