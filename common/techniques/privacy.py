"""Client-level differential privacy: clipping of updates, noise and its secret randomness.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018. An update Δ_k = w_k − w is clipped to norm C over all parameters. The sum of the updates, with
equal weights, gets Gaussian noise of standard deviation z C and is divided by a fixed m.

    Δ_k ← Δ_k · min(1, C / ‖Δ_k‖)        w ← w + (Σ_k Δ_k + N(0, z² C² I)) / m

Noise and secret selection come from a key of the operating system's entropy, which only its owner
can read. They cannot come from the run's seed, which every client has. A draw is a function of the
key, of its name and of the update that receives the noise. A repetition after a crash therefore
gives the same bits and reveals nothing new. Another sum in the same round gets other noise.

Not defended: information about a sum in the rounding of floating-point numbers (Mironov, "On
Significance of the Least Significant Bits for Differential Privacy", CCS 2012).
"""

from __future__ import annotations

import hashlib
import math
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
    """Return a new key from the operating system's entropy; tests replace this function."""
    return os.urandom(SIZE)


@final
class Secret:
    """Source of named draws: the key stream of ChaCha20 from a secret ``key`` of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def made(cls, folder: Path) -> Secret:
        """Create a new key, store it in ``folder`` with mode 0600 and return its source."""
        key = entropy()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / NAME, key, private=True)
        return cls(key)

    @classmethod
    def kept(cls, folder: Path) -> Secret:
        """Return the source of the key in ``folder``; raise ``ValueError`` if it cannot be read."""
        path = folder / NAME
        try:
            key = path.read_bytes()
        except OSError as error:
            why = "without it a repeated round would get other noise"
            raise ValueError(f"{path} cannot be read: {error.strerror}; {why}") from error
        if len(key) != SIZE:
            raise ValueError(f"{path} has {len(key)} bytes, a key has {SIZE}")
        return cls(key)

    def derived(self, *name: str | int | bytes) -> bytes:
        """Return 32 bytes for ``name``, which tell nothing of the key or of other names."""
        text = b"/".join(word if isinstance(word, bytes) else str(word).encode() for word in name)
        return hashlib.sha256(self._key + text).digest()

    def uniform(self, n: int, *name: str | int | bytes) -> np.ndarray:
        """Return n numbers in (0, 1], float64, of the draw ``name``."""
        key = self.derived(*name)
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n))
        words: np.ndarray = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
        return (words + 1.0) / 2.0**53

    def normal(self, n: int, *name: str | int | bytes) -> Tensor:
        """Return n standard normal numbers, float64 (Box and Muller 1958)."""
        half = (n + 1) // 2
        u = self.uniform(2 * half, *name)
        radius, angle = np.sqrt(-2 * np.log(u[:half])), 2 * np.pi * u[half:]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return torch.from_numpy(both[:n])


ORDERS = tuple(1 + 10 ** (i / 40) for i in range(-80, 241))  #: α of Rényi divergences
OWNERS_DELTA = 1e-5  #: δ of the ε that the owner of a client's machine limits


def local_cost(z: float) -> float:
    """Return Δ² / 2σ² of an update with noise z C, for Δ = 2 C between any two updates."""
    return 2 / z**2


def gaussian_epsilon(cost: float, delta: float = OWNERS_DELTA) -> float:
    """Return an upper bound of ε for Gaussian mechanisms with the sum ``cost`` of Δ² / 2σ².

    The Rényi divergence of order α is α · cost, and divergences of several rounds add up (Mironov,
    "Rényi Differential Privacy", CSF 2017). ε follows from each order (Canonne, Kamath, Steinke,
    "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, proposition 12):

        ε = min over α > 1 of α · cost + log((α − 1) / α) − (log δ + log α) / (α − 1)
    """
    bounds = (
        a * cost + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS
    )
    return max(min(bounds), 0.0) if cost else 0.0


def averaged(state: Mapping[str, Tensor], parameters: Set[str], *, buffers: bool) -> list[str]:
    """Return the names of averaged entries: floating-point, parameters only unless ``buffers``."""
    return [n for n, v in state.items() if v.is_floating_point() and (buffers or n in parameters)]


def flattened(state: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """Return the entries ``names`` as one vector, float64 [P]."""
    return torch.cat([state[name].reshape(-1).to(torch.float64) for name in names])


def clipped(update: Tensor, most: float) -> Tensor:
    """Return ``update`` [P], scaled down to the Euclidean norm ``most`` if its norm is larger."""
    norm = float(update.norm())
    return update if norm <= most else update * (most / norm)


def noised(update: Tensor, deviation: float, secret: Secret, *name: str | int) -> Tensor:
    """Return ``update`` [P] with normal noise of this standard deviation in each number."""
    bound = hashlib.sha256(update.numpy().tobytes()).digest()
    return update + deviation * secret.normal(update.numel(), "noise", *name, bound)


def moved(start: Mapping[str, Tensor], names: list[str], step: Tensor) -> StateDict:
    """Return ``start`` with ``step`` [P] added to its entries ``names``; variances stay ≥ 0."""
    state, at = dict(start), 0
    for name in names:
        value = start[name]
        change = step[at : at + value.numel()].view(value.shape)
        new = value.to(torch.float64) + change
        if name.endswith("running_var"):
            new = new.clamp_min(0.0)
        state[name], at = new.to(value.dtype), at + value.numel()
    return state
