"""The fork server of the loopback workers, started before the slow imports of this process.

It imports the clients' modules in its own process, while this process imports the run's modules.
"""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

from common.settings.version import ROOT

MODULES = ["client_app.app", "common.settings.parse", "client_app.methods", "torch._dynamo"]
"""Modules that every client imports. The first step of a torch optimiser imports ``torch._dynamo``,
which takes seconds. The client half of a method takes milliseconds and is imported when needed."""


def begin() -> None:
    """Start the fork server and its imports without waiting; do nothing if it runs already."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with environment("PYTHONPATH", path):  # the only place where the server finds our modules
        forkserver.ensure_running()


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
