"""``flwr-clientapp`` for a client that accepts only the app bundle with the pinned digest.

It runs as a script or in the warm process (``warm.py``). Both belong to this machine's
installation, so that the SuperLink's bundle cannot replace them. This file must not import
``common`` or ``client_app``, which come from the bundle after the check. Without a pinned digest,
Flower's own program runs unchanged.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

PIN = "FEDMOSAIC_APP_DIGEST"  #: environment variable of a SuperNode with the digest, 64 hex digits
PROGRAM = "flwr-clientapp"


def digest(fab: bytes) -> str:
    """Return the SHA-256 of the names and contents of all files in a bundle, 64 hex digits.

    A digest of the bundle's bytes would depend on the zlib version that compressed it.

    Raises ``ValueError`` if ``fab`` is not a bundle.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as file:
            parts = [(entry.filename.encode(), file.read(entry)) for entry in file.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the received app bundle cannot be read: {error}") from None
    lines = [hashlib.sha256(name).digest() + hashlib.sha256(text).digest() for name, text in parts]
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def check(fab: bytes, pin: str) -> None:
    """Raise ``ValueError`` for a bundle whose digest is not ``pin``."""
    if (actual := digest(fab)) != pin:
        raise ValueError(f"the received app bundle has the digest {actual}, --app-digest is {pin}")


def run(pin: str, real: Callable[[], None]) -> None:
    """Run Flower's program ``real`` with replaced functions for installing and loading a bundle.

    The pinned bundle is installed into a folder of its own, and the ClientApp is loaded from there,
    whatever folder the run's metadata name. If Flower loads an app without installing it, the
    client replies with an error.
    """
    flower: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    install, loader = flower.install_from_fab, flower.get_load_client_app_fn
    installed: list[Path] = []

    def checked(fab: bytes, **_: object) -> Path:
        check(fab, pin)
        installed.append(install(fab, Path(os.environ["FLWR_HOME"]) / f"pinned-{pin}", True))
        return installed[-1]

    def pinned_loader(**_: object) -> Callable[[str, str, str], ClientApp]:
        if not installed:
            raise RuntimeError(
                "this Flower loads an app without installing it: its digest was not checked"
            )
        load: Callable[[str, str, str], ClientApp] = loader("", str(installed[-1]), True)
        return load

    flower.install_from_fab, flower.get_load_client_app_fn = checked, pinned_loader
    real()


def main(real: Callable[[], None]) -> None:
    """Run as ``flwr-clientapp``; ``real``: Flower's own entry point."""
    if pin := os.environ.get(PIN):
        run(pin, real)
    else:
        real()


if __name__ == "__main__":
    from flwr.supernode.cli import flwr_clientapp

    sys.argv[0] = PROGRAM
    main(flwr_clientapp)
