"""Client-level differential privacy: clipping of updates, noise and its secret randomness.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018: an update Δ_k = w_k − w is shortened as a whole to norm C and enters a sum of equal weights
over a fixed denominator m, to which Gaussian noise of standard deviation z C is added.

    Δ_k ← Δ_k · min(1, C / ‖Δ_k‖)        w ← w + (Σ_k Δ_k + N(0, z² C² I)) / m

Noise and secret selection come from a key of the operating system's entropy, which only its owner
may read: the run's seed is known to every client. A draw is a function of the key, of its name and
of what the noise is added to. What is repeated after a crash is then the same to the bit and tells
nothing new; another sum in the same round gets noise of its own.

Not defended: what the rounding of floating-point numbers tells of a sum (Mironov, "On Significance
of the Least Significant Bits for Differential Privacy", CCS 2012).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from common.exchange.records import StateDict
from common.files import write_atomically

NAME, SIZE = "privacy.key", 32


def entropy() -> bytes:
    """A new key, of the operating system's entropy; tests put another function here."""
    return os.urandom(SIZE)


@final
class Secret:
    """Draws that follow from a ``key`` of 32 bytes: the key stream of ChaCha20, for each name."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def made(cls, folder: Path) -> Secret:
        """A new one, kept in ``folder`` with mode 0600."""
        key = entropy()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / NAME, key, private=True)
        return cls(key)

    @classmethod
    def kept(cls, folder: Path) -> Secret:
        """The one in ``folder``; raises ``ValueError`` if it is not there or not whole."""
        path = folder / NAME
        try:
            key = path.read_bytes()
        except OSError as error:
            lost = "without it a repeated round would get other noise"
            raise ValueError(f"{path} cannot be read: {error.strerror}; {lost}") from error
        if len(key) != SIZE:
            raise ValueError(f"{path} has {len(key)} bytes, a key has {SIZE}")
        return cls(key)

    def uniform(self, n: int, *name: str | int | bytes) -> np.ndarray:
        """n numbers in (0, 1], float64, of the draw called ``name``."""
        text = b"/".join(part if isinstance(part, bytes) else str(part).encode() for part in name)
        key = hashlib.sha256(self._key + text).digest()
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n))
        words: np.ndarray = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
        return (words + 1.0) / 2.0**53

    def normal(self, n: int, *name: str | int | bytes) -> Tensor:
        """n standard normal numbers, float64 (Box and Muller 1958)."""
        half = (n + 1) // 2
        u = self.uniform(2 * half, *name)
        radius, angle = np.sqrt(-2 * np.log(u[:half])), 2 * np.pi * u[half:]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return torch.from_numpy(both[:n])


def averaged(state: Mapping[str, Tensor], parameters: Set[str], *, buffers: bool) -> list[str]:
    """Names of the entries that are averaged: floating-point, without ``buffers`` parameters."""
    return [n for n, v in state.items() if v.is_floating_point() and (buffers or n in parameters)]


def flattened(state: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """The entries ``names`` behind each other, float64."""
    return torch.cat([state[name].reshape(-1).to(torch.float64) for name in names])


def clipped(update: Tensor, most: float) -> Tensor:
    """``update`` [P], shortened to the Euclidean norm ``most`` where it is longer."""
    norm = float(update.norm())
    return update if norm <= most else update * (most / norm)


def noised(update: Tensor, deviation: float, secret: Secret, *name: str | int) -> Tensor:
    """``update`` [P] with normal noise of this standard deviation in each number."""
    bound = hashlib.sha256(update.numpy().tobytes()).digest()
    return update + deviation * secret.normal(update.numel(), "noise", *name, bound)


def moved(start: Mapping[str, Tensor], names: list[str], step: Tensor) -> StateDict:
    """``start``, its entries ``names`` moved by ``step`` [P]; variances stay at least 0."""
    found, at = dict(start), 0
    for name in names:
        value = start[name]
        part = step[at : at + value.numel()].view(value.shape)
        there = value.to(torch.float64) + part
        if name.endswith("running_var"):
            there = there.clamp_min(0.0)
        found[name], at = there.to(value.dtype), at + value.numel()
    return found
