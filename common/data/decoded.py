"""A decoded copy of image files: one safetensors file, memory-mapped by every process.

The copy lies beside the folder (``.<folder>-<size>.safetensors``), or in the user's cache where
that place cannot be written. It carries a key over the names, sizes and times of the images, and
is made anew when that key no longer fits or the file is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from common.data.places import cache_dir

VERSION = 1  #: raised whenever the same files would be decoded differently


def cached(
    root: Path, paths: list[str], size: int, decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """What ``decode`` returns for ``paths``, all below ``root``; decoded at most once per content.

    A copy is written under a temporary name and renamed, so readers never see half of it; where
    nothing can be written, every process decodes for itself.
    """
    key = _key(root, paths, size)
    beside = root.parent / f".{root.name}-{size}.safetensors"
    of_root = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    elsewhere = cache_dir() / "folders" / f"{of_root}-{size}.safetensors"
    for path in (beside, elsewhere):
        if (tensors := _read(path, key)) is not None:
            return tensors
    fresh = decode()
    for path in (beside, elsewhere):
        if _write(path, fresh, key):
            return _read(path, key) or fresh
    return fresh


def _key(root: Path, paths: list[str], size: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {size}".encode())
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        digest.update(os.fsencode(path.removeprefix(str(root))) + b"\0")
        digest.update(struct.pack("<qq", status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def _read(path: Path, key: str) -> dict[str, Tensor] | None:
    """The tensors, mapped rather than read; None if the copy is missing, stale or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _write(path: Path, tensors: dict[str, Tensor], key: str) -> bool:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(temporary), {"key": key})
        temporary.replace(path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True
