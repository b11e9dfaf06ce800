"""A model on disk: a plain safetensors file of the weights by their names, with a digest.

``__metadata__`` has ``sha256``, over the weights and not over the file, so that equal weights have
one digest whatever file they are in. Files of others have none and are read all the same.
"""

import errno
import hashlib
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common.errors import first_line
from common.exchange.records import StateDict
from common.files import Damaged, replaced

OS_ERROR = re.compile(r"os error (\d+)")
"""How safetensors tells which error of the system kept it from writing."""


def write(path: Path, weights: StateDict) -> None:
    """Replace the file ``path``; no number is copied, since models may be large.

    Raises ``OSError`` naming ``path`` if it cannot be written.
    """
    plain = {name: tensor.contiguous() for name, tensor in weights.items()}
    with replaced(path) as temporary:
        try:
            save_file(plain, temporary, {"sha256": digest(weights)})
        except SafetensorError as error:
            found = OS_ERROR.search(str(error))
            number = int(found[1]) if found else errno.EIO
            raise OSError(number, os.strerror(number)) from error


def load(path: Path) -> StateDict:
    """The weights in a file; ``Damaged``, naming it, if they are not those that were written."""
    try:
        return read(path)[0]
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror or error}") from error


def read(path: Path) -> tuple[StateDict, str]:
    """The weights, and the digest that the file carries: empty for a file of others.

    Raises as ``load`` does, but ``OSError`` for a file that cannot be opened.
    """
    try:
        with safe_open(path, framework="pt") as file:
            said = (file.metadata() or {}).get("sha256", "")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        line = first_line(error)
        raise Damaged(f"{path} is damaged or no safetensors file: {line}") from error
    if said and said != digest(weights):
        raise Damaged(f"{path} is damaged: its digest does not match its weights")
    return weights, said


def digest(weights: StateDict) -> str:
    """sha256 over names, dtypes, shapes and bytes: equal for equal weights, whatever the file."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
