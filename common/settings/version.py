"""The version of the code, which client and server compare before a run."""

import functools
import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]  #: folder of the Flower app, with ``pyproject.toml``
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@functools.cache
def code_version() -> str:
    """Return the release and a fingerprint of the sources that both halves share."""
    root = ROOT / "common"
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()[:12]}"
