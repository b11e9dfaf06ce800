"""Model files: safetensors files with the weights by their names and a digest.

``__metadata__`` has ``sha256``, a digest of the weights, not of the file: equal weights have the
same digest in every file. Files of other programs have no digest and can be read too.
"""

import errno
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common.errors import first_line
from common.exchange.records import StateDict
from common.files import Damaged, replaced

NOTHING: Mapping[str, str] = {}
OS_ERROR = re.compile(r"os error (\d+)")
"""Pattern of the system's error number in an error of safetensors."""


def write(path: Path, weights: StateDict, about: Mapping[str, str] = NOTHING) -> None:
    """Replace the file ``path`` without a copy of the numbers, because models are large.

    ``about``: further metadata. Raises ``OSError`` naming ``path`` if it cannot be written.
    """
    plain = {name: tensor.contiguous() for name, tensor in weights.items()}
    with replaced(path) as temporary:
        try:
            save_file(plain, temporary, {**about, "sha256": digest(weights)})
        except SafetensorError as error:
            match = OS_ERROR.search(str(error))
            number = int(match[1]) if match else errno.EIO
            raise OSError(number, os.strerror(number)) from error


def round_of(path: Path) -> int:
    """Return the ``round`` in the metadata of a file; 0 without a file or a round."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return int((file.metadata() or {}).get("round", 0))


def load(path: Path) -> StateDict:
    """Return the weights in a file; raise ``Damaged``, with the path, if they were changed."""
    try:
        return read(path)[0]
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror or error}") from error


def read(path: Path) -> tuple[StateDict, str]:
    """Return the weights and the digest in the file, which is empty for other programs' files.

    Raises as ``load`` does, but ``OSError`` for a file that cannot be opened.
    """
    try:
        with safe_open(path, framework="pt") as file:
            recorded = (file.metadata() or {}).get("sha256", "")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        line = first_line(error)
        raise Damaged(f"{path} is damaged or no safetensors file: {line}") from error
    if recorded and recorded != digest(weights):
        raise Damaged(f"{path} is damaged: its digest does not match its weights")
    return weights, recorded


def digest(weights: StateDict) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes; equal weights have equal digests."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
