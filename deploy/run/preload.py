"""The server that the workers of the loopback fork from, begun before anything heavy is imported.

It imports in a process of its own what a client needs, while this one imports what a run needs.
"""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

from common.settings.version import ROOT

MODULES = ["client_app.app", "common.settings.parse", "client_app.methods", "torch._dynamo"]
"""What every client imports; every first step of a torch optimiser the last one, for seconds.

A method's own half is imported in milliseconds, where it is needed."""


def begin() -> None:
    """Have the server import, and do not wait for it. Once it is there this does nothing."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with environment("PYTHONPATH", path):  # the server looks nowhere else for what it imports
        forkserver.ensure_running()


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """A block in which an environment variable has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
