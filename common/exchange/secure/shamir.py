"""Shamir's secret sharing of bytes over GF(2⁸).

Shamir, "How to Share a Secret", 1979. Each byte s of a secret has a polynomial of its own,
p(x) = s + a₁ x + … + a_{ϑ−1} x^{ϑ−1} with random coefficients. A share is p(x) for one x in 1 to
255. Any ϑ shares give s = p(0), and fewer tell nothing of it. The field has the polynomial 0x11b.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.exchange.seal.body import Random

MOST = 255  #: the largest number of shares

Bytes = np.ndarray
"""Numbers of the field, uint8."""


def _tables() -> tuple[Bytes, Bytes]:
    """Return powers of the generator 3 [510] and the logarithms of 1 to 255 [256]."""
    powers, logs, x = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for i in range(255):
        powers[i] = powers[i + 255] = x
        logs[x] = i
        x ^= x << 1 ^ (0x11B if x & 0x80 else 0)  # times 3
    return powers, logs


POWERS, LOGS = _tables()


def times(a: Bytes, b: int) -> Bytes:
    """Return a · b in the field, element by element."""
    if not b:
        return np.zeros_like(a)
    return np.where(a == 0, np.uint8(0), POWERS[LOGS[a] + LOGS[b]])


def split(secret: bytes, threshold: int, xs: Sequence[int], random: Random) -> dict[int, bytes]:
    """Return the share of each x in ``xs``; any ``threshold`` of them give the secret.

    Raises ``ValueError`` for fewer shares than the threshold, and for an x out of bounds or twice.
    """
    if not 1 <= threshold <= len(set(xs)) == len(xs) or not set(xs) <= set(range(1, MOST + 1)):
        raise ValueError(f"{len(xs)} shares of different x in 1 to {MOST} with {threshold = }")
    drawn = np.frombuffer(random(len(secret) * (threshold - 1)), np.uint8)
    coefficients = drawn.reshape(threshold - 1, len(secret))
    shares = {}
    for x in xs:
        value = np.zeros(len(secret), np.uint8)
        for a in coefficients[::-1]:
            value = times(value ^ a, x)
        shares[x] = (value ^ np.frombuffer(secret, np.uint8)).tobytes()
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return p(0) of the polynomial through the shares by x, the secret if they are enough."""
    value = np.zeros(len(next(iter(shares.values()))), np.uint8)
    for x, share in shares.items():
        factor = 0  # logarithm of Π_{z ≠ x} z / (z − x), where − is ⊕
        for z in shares.keys() - {x}:
            factor += int(LOGS[z] - LOGS[z ^ x])
        value ^= times(np.frombuffer(share, np.uint8), int(POWERS[factor % 255]))
    return value.tobytes()
