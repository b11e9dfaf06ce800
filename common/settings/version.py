"""Which code is this? Client and server compare it before they trust each other's numbers."""

import functools
import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]  #: of the Flower app, where its ``pyproject.toml`` is
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@functools.cache
def code_version() -> str:
    """The release and a fingerprint over the sources that both halves share."""
    root = ROOT / "common"
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()[:12]}"
