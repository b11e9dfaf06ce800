"""The final model of a finished run, from its file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from common.records import StateDict


def load_weights(path: Path) -> StateDict:
    """Weights by name, on the CPU. Raises ``ValueError`` naming a file that cannot be read."""
    try:
        weights: StateDict = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    return weights
