"""Where data sets are looked for, and decoded copies of them, memory-mapped by every process.

A copy is one safetensors file. A process reads only the rows it takes, and all processes share one
copy in memory. The copy of a folder lies beside it (``.<folder>-<size>.safetensors``), or in the
user's cache where that place cannot be written; the copy of a data set of a few large files lies in
the user's cache. It carries a key over the names, sizes and times of the sources, and is made anew
when that key no longer fits or the file is damaged. Where nothing can be written, every process
decodes for itself.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from common.files import replaced
from common.settings.config import Data

VERSION = 1  #: raised whenever the same files would be decoded differently
SMALL = 2**20  #: bytes of source files that are decoded every time rather than kept


def cache_dir() -> Path:
    """The user's cache: $XDG_CACHE_HOME/fedmosaic, else ~/.cache/fedmosaic. Not created here."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "fedmosaic"


def given(data: Data, name: str) -> Path:
    """The folder ``data.dir``; raises ``ValueError`` if it is not said, or none."""
    if not data.dir:
        raise ValueError(f"data set {name!r} needs data.dir, the folder of its files")
    folder = Path(data.dir).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"data.dir = {data.dir!r} is not a folder")
    return folder


def cached(
    root: Path, paths: list[str], size: int, decode: Callable[[], dict[str, Tensor]], kind: str = ""
) -> dict[str, Tensor]:
    """What ``decode`` returns for ``paths``, all below ``root``; decoded at most once per content.

    ``kind``: of what, where several things are made of one folder.
    """
    beside = root.parent / f".{root.name}-{kind}{size}.safetensors"
    elsewhere = cache_dir() / "folders" / f"{_digest([str(root)])}-{kind}{size}.safetensors"
    return _through([beside, elsewhere], _key(str(root), paths, size), decode)


def kept(
    name: str, files: Sequence[Path], decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """What ``decode`` makes of the ``files`` of the data set ``name``; likewise."""
    paths = [str(path.resolve()) for path in files]
    if sum(path.stat().st_size for path in files) < SMALL:
        return decode()
    copy = cache_dir() / "decoded" / f"{name}-{_digest(paths)}.safetensors"
    return _through([copy], _key("", paths, 0), decode)


def _through(
    places: Sequence[Path], key: str, decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The copy in the first of the ``places`` that has it, else a fresh one, kept where it can."""
    for path in places:
        if (tensors := _read(path, key)) is not None:
            return tensors
    fresh = decode()
    for path in places:
        if _write(path, fresh, key):
            return _read(path, key) or fresh
    return fresh


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\0".join(texts))).hexdigest()[:16]


def _key(prefix: str, paths: list[str], size: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {size}".encode())
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        digest.update(os.fsencode(path.removeprefix(prefix)) + b"\0")
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
    except (OSError, RuntimeError, SafetensorError):  # torch maps it anew; it may be gone by then
        return None


def _write(path: Path, tensors: dict[str, Tensor], key: str) -> bool:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary:
            save_file(tensors, temporary, {"key": key})
    except (OSError, SafetensorError):
        return False
    return True
