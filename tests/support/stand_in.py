"""Replace the ClientApp's program by a script on one SuperNode of a federation."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.run import grpc as runtime


@contextlib.contextmanager
def standing_in(script: str, client: int) -> Iterator[None]:
    """Context in which the SuperNode of ``client`` runs ``script`` as its ClientApp.

    A node starts no program but its installation's, so this client has changed its installation.
    ``script``: name of a file in this folder.
    """
    program = [sys.executable, str(Path(__file__).with_name(script))]
    honest = runtime.supernode_command

    def command(fleet: str, config: str, certificates: Any, k: int) -> list[str]:
        line = list(honest(fleet, config, certificates, k))
        if k == client:
            changed = f"supernode.client_app = lambda: {program!r}; supernode.program()"
            line = [part.replace("supernode.program()", changed) for part in line]
            assert line != honest(fleet, config, certificates, k)
        return line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "supernode_command", command)
        yield
