"""A program of ours in the place of ``flwr-clientapp`` on one SuperNode of a federation."""

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
    """A block in which the SuperNode whose FLWR_HOME is ``home`` starts with ``script`` (of this
    folder) as its ClientApp's program; ``folder``: a new one, for the program.
    """
    folder.mkdir()
    program, path = folder / "flwr-clientapp", Path(__file__).with_name(script)
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(path)])} "$@"\n')
    program.chmod(0o755)
    found = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])

    def of_a_node(extra: Mapping[str, str], own: Path) -> dict[str, str]:
        return environment({**extra, "PATH": found} if own == home else extra, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "environment", of_a_node)
        yield
