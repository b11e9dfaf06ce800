"""Replace ``flwr-clientapp`` by a script on one SuperNode of a federation."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deploy.flower.processes import environment
from deploy.run import grpc as runtime


@contextlib.contextmanager
def standing_in(script: str, home: Path, folder: Path) -> Iterator[None]:
    """Context in which the SuperNode with FLWR_HOME ``home`` runs ``script`` as its ClientApp.

    ``script``: name of a file in this folder; ``folder``: a new folder for the program.
    """
    folder.mkdir()
    program, path = folder / "flwr-clientapp", Path(__file__).with_name(script)
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(path)])} "$@"\n')
    program.chmod(0o755)
    path_variable = os.pathsep.join(
        [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    )

    def of_a_node(extra: Mapping[str, str], own: Path) -> dict[str, str]:
        return environment({**extra, "PATH": path_variable} if own == home else extra, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "environment", of_a_node)
        yield
