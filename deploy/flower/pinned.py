"""``flwr-clientapp`` for a client that takes one app bundle only: the one with the pinned digest.

Run as a script, or called by the warm process (``warm.py``): both are of this machine's own
installation, so what the SuperLink sends cannot replace them. Nothing here may import ``common`` or
``client_app``: these come from the bundle, after the check. Where no digest is pinned, Flower's own
program runs unchanged.
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

PIN = "FEDMOSAIC_APP_DIGEST"  #: variable of a SuperNode's environment: the digest, 64 hex digits
PROGRAM = "flwr-clientapp"


def digest(fab: bytes) -> str:
    """SHA-256 over names and contents of everything in a bundle, 64 hex digits.

    The bundle's own digest would depend on the zlib that compressed it.

    Raises ``ValueError``: ``fab`` is no bundle.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as file:
            parts = [(entry.filename.encode(), file.read(entry)) for entry in file.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the app bundle that came cannot be read: {error}") from None
    lines = [hashlib.sha256(name).digest() + hashlib.sha256(text).digest() for name, text in parts]
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def check(fab: bytes, pin: str) -> None:
    """Raise ``ValueError`` for a bundle that is not the pinned one."""
    if (found := digest(fab)) != pin:
        raise ValueError(f"the app bundle that came has the digest {found}, --app-digest is {pin}")


def run(pin: str, real: Callable[[], None]) -> None:
    """Run Flower's program with its installation and its loading of the bundle replaced.

    The pinned bundle is installed where no other one ever was, and the ClientApp is loaded from
    there, whatever folder the run's metadata mean. If Flower loads without installing first, the
    client answers with an error.
    """
    flower: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    install, loader = flower.install_from_fab, flower.get_load_client_app_fn
    installed: list[Path] = []

    def checked(fab: bytes, **_: object) -> Path:
        check(fab, pin)
        installed.append(install(fab, Path(os.environ["FLWR_HOME"]) / f"pinned-{pin}", True))
        return installed[-1]

    def from_there(**_: object) -> Callable[[str, str, str], ClientApp]:
        if not installed:
            raise RuntimeError(
                "this Flower loads an app without installing it: nothing was checked"
            )
        load: Callable[[str, str, str], ClientApp] = loader("", str(installed[-1]), True)
        return load

    flower.install_from_fab, flower.get_load_client_app_fn = checked, from_there
    real()


def main(real: Callable[[], None]) -> None:
    """Be ``flwr-clientapp``; ``real``: Flower's own entry point."""
    if pin := os.environ.get(PIN):
        run(pin, real)
    else:
        real()


if __name__ == "__main__":
    from flwr.supernode.cli import flwr_clientapp

    sys.argv[0] = PROGRAM
    main(flwr_clientapp)
