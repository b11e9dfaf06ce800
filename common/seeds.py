"""Named random streams: the same seed and name give the same numbers on every runtime.

The project never draws from the global generators of torch, numpy or Python. A draw takes
``stream(seed, "noise", k, t)`` (torch) or ``rng(seed, "select", t)`` (numpy). Library code that
needs the global generator (module initialisation, dropout) runs inside ``scope(...)``, which
restores the global state afterwards.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch


def key(seed: int, *name: str | int) -> int:
    """Return a 63-bit seed for the draw ``name``; different names give independent seeds."""
    text = "/".join([str(int(seed)), *(str(word) for word in name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new torch generator for the draw ``name``."""
    generator = torch.Generator(device=device)
    generator.manual_seed(key(seed, *name))
    return generator


def rng(seed: int, *name: str | int) -> np.random.Generator:
    """Return a new numpy generator for the draw ``name``."""
    return np.random.Generator(np.random.PCG64(key(seed, *name)))


@contextlib.contextmanager
def scope(seed: int, *name: str | int) -> Iterator[None]:
    """Seed torch's global generators by ``name`` in a block, and restore their state afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        _seed(key(seed, *name))
        yield


def _seed(number: int) -> None:
    """Seed the CPU and CUDA.

    ``torch.manual_seed`` also seeds other device types. For each that is missing it queues the call
    with its stack trace, which takes longer than training a small network.
    """
    torch.default_generator.manual_seed(number)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(number)
