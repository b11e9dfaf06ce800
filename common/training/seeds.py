"""Named random streams: the same seed and name give the same numbers on every runtime.

Nothing in the project draws from torch's, numpy's or Python's global generators. A draw takes
``stream(seed, "noise", k, t)`` (torch) or ``rng(seed, "select", t)`` (numpy) instead; code of
others that insists on the global generator (module initialisation, dropout) runs inside
``scope(...)``, which puts the global state back afterwards.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch


def key(seed: int, *name: str | int) -> int:
    """A 63-bit seed for the draw called ``name``; independent for different names and seeds."""
    text = "/".join([str(int(seed)), *(str(part) for part in name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for the draw called ``name``."""
    generator = torch.Generator(device=device)
    generator.manual_seed(key(seed, *name))
    return generator


def rng(seed: int, *name: str | int) -> np.random.Generator:
    """A fresh numpy generator for the draw called ``name``."""
    return np.random.Generator(np.random.PCG64(key(seed, *name)))


@contextlib.contextmanager
def scope(seed: int, *name: str | int) -> Iterator[None]:
    """Run a block on a named global torch state and restore the former state afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        _seed(key(seed, *name))
        yield


def _seed(number: int) -> None:
    """``torch.manual_seed`` without the devices that we do not compute on: for each of them that is
    not there it keeps the call and prints the stack, which takes longer than a small network.
    """
    torch.default_generator.manual_seed(number)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(number)
