"""Cache of decoded data sets as memory-mapped files, shared by all processes.

A copy is one safetensors file. A process reads only the rows that it uses, and all processes share
one copy in memory. The copy of a folder is next to it (``.<folder>-<size>.safetensors``), or in the
user's cache if that location is not writable. The copy of a data set of a few large files is in the
user's cache. A copy stores a key of the names, sizes and times of its sources. It is written again
if the key differs or the file is damaged. If no location is writable, every process decodes.
"""

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from common.files import home, replaced
from common.settings.config import Data

VERSION = 3  #: format version, raised whenever decoding changes
SMALL = 2**20  #: total size in bytes below which source files are decoded without a cache


def cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/fedmosaic, else ~/.cache/fedmosaic, without creating it."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else home() / ".cache") / "fedmosaic"


def data_folder(data: Data, name: str) -> Path:
    """Return the folder ``data.dir``; raise ``ValueError`` if it is empty or not a folder."""
    if not data.dir:
        raise ValueError(f"data set {name!r} needs data.dir, the folder of its files")
    folder = Path(data.dir).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"data.dir = {data.dir!r} is not a folder")
    return folder


def visible(root: Path) -> dict[str, Path]:
    """Return the files inside ``root`` by relative path, without hidden files and folders."""
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path for name, path in paths.items() if not re.search(r"(^|/)\.", name)}


def check_content(data: Data) -> None:
    """Raise ``ValueError`` if the content of ``data.dir`` has another digest than ``data.digest``.

    The digest is the SHA-256, 16 hexadecimal digits, of the files' relative paths and bytes in
    the order of the paths. Hidden files and folders are left out.
    """
    total = hashlib.sha256()
    for name, path in sorted(visible(data_folder(data, data.name)).items()):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(os.fsencode(f"{name}\0{digest}\0"))
    if (content := total.hexdigest()[:16]) != data.digest:
        raise ValueError(
            f"data.dir = {data.dir!r} has other content than data.digest = {data.digest!r}: its "
            f"digest is {content}"
        )


def cached(
    root: Path, paths: list[str], size: int, decode: Callable[[], dict[str, Tensor]], kind: str = ""
) -> dict[str, Tensor]:
    """Return the cached result of ``decode`` for ``paths``, which are all inside ``root``.

    ``kind`` distinguishes several copies of one folder.
    """
    adjacent = root.parent / f".{root.name}-{kind}{size}.safetensors"
    central = cache_dir() / "folders" / f"{_digest([str(root)])}-{kind}{size}.safetensors"
    return _through([adjacent, central], _key(str(root), paths, size), decode)


def cached_files(
    name: str, files: Sequence[Path], decode: Callable[[], dict[str, Tensor]], *options: str
) -> dict[str, Tensor]:
    """Return the cached result of ``decode`` for the ``files`` of the data set ``name``.

    ``options``: settings on which the result depends, in a fixed order.
    """
    paths = [str(path.resolve()) for path in files]
    if sum(path.stat().st_size for path in files) < SMALL:
        return decode()
    copy = cache_dir() / "decoded" / f"{name}-{_digest([*paths, *options])}.safetensors"
    return _through([copy], _key("", paths, 0), decode)


def _through(
    copies: Sequence[Path], key: str, decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the first valid copy, else decode and write to the first writable path."""
    for path in copies:
        if (tensors := _read(path, key)) is not None:
            return tensors
    fresh = decode()
    for path in copies:
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
    """Return memory-mapped tensors, or None if the copy is missing, stale or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, RuntimeError, SafetensorError):  # torch opens it again; it may be deleted
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
