"""Integers of updates, masks from keys, and sums modulo 2³².

Rounding is to the nearest even integer, and sums are of integers. So a sum has the same bits in
every order of its clients and with every key.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from common.exchange.secure.shamir import MOST

Words = np.ndarray
"""Integers modulo 2³², uint32 [P]."""

LARGEST = 2**23 - 1  #: the largest integer of an entry
assert MOST * LARGEST < 2**31, "no sum overflows"
SHARES = 2**20  #: the integer of a share of clipped entries that is 1


def step(clip: float) -> float:
    """Return the distance of two neighbouring quantised values."""
    return clip / LARGEST


def quantised(update: np.ndarray, clip: float) -> tuple[Words, float]:
    """Return a weighted update, float64 [P], as integers, and the share of clipped entries.

    q = rint(clip(update, ±clip) · (2²³ − 1) / clip) modulo 2³²

    Raises ``FloatingPointError`` for values that are not finite: the sum would hide them.
    """
    if not np.isfinite(update).all():
        raise FloatingPointError("training diverged: the update has values that are not finite")
    beyond = float(np.mean(np.abs(update) > clip)) if update.size else 0.0
    whole = np.rint(np.clip(update, -clip, clip) * LARGEST / clip)
    return whole.astype(np.int64).astype(np.uint32), beyond


def dequantised(total: Words, clip: float) -> np.ndarray:
    """Return a sum of quantised updates as float64 [P]."""
    return total.view(np.int32).astype(np.float64) * clip / LARGEST


def words(key: bytes, n: int) -> Words:
    """Return n words of the generator: AES-256 in counter mode from 0, little-endian."""
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(4 * n))
    return np.frombuffer(stream, "<u4").astype(np.uint32, copy=False)


def pair_masks(k: int, keys: Mapping[int, bytes], n: int) -> Words:
    """Return Σ_{j > k} PRG(s_kj) − Σ_{j < k} PRG(s_kj); ``keys``: s_kj by peer j."""
    total = np.zeros(n, np.uint32)
    for j, key in keys.items():
        total = total + words(key, n) if j > k else total - words(key, n)
    return total


def unmasked(
    uploads: Iterable[tuple[int, Words]],
    self_keys: Mapping[int, bytes],
    lost_keys: Mapping[int, Mapping[int, bytes]],
    n: int,
) -> Words:
    """Return Σ q_k of the survivors k from their ``uploads`` y_k.

    ``self_keys``: b_k; ``lost_keys``: by survivor, the keys s_kj of the lost clients j.
    """
    total = np.zeros(n, np.uint32)
    for k, y in uploads:
        total += y - words(self_keys[k], n) - pair_masks(k, lost_keys.get(k, {}), n)
    return total
