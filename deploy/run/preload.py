"""The fork server of the loopback workers, started before the slow imports of this process.

It imports the clients' modules in its own process, while this process imports the run's modules.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver, util
from types import ModuleType

from common.settings.version import ROOT

MODULES = ["client_app.app", "common.parse", "client_app.methods", "torch._dynamo"]
"""Modules that every client imports. The first step of a torch optimiser imports ``torch._dynamo``,
which takes seconds. The client half of a method takes milliseconds and is imported when needed."""


MOST = 60  #: bytes of a folder in which multiprocessing's sockets have paths of at most 107 bytes


def begin() -> None:
    """Start the fork server and its imports without waiting; do nothing if it runs already.

    Ctrl-C does not reach the server nor its workers: whoever started them ends them.
    """
    _place_sockets()
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits it
    try:
        with environment("PYTHONPATH", path):  # the only place where the server finds our modules
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _place_sockets() -> None:
    """Let multiprocessing make the folder of its sockets in /tmp if TMPDIR has a long path."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) > MOST:
        tempfile.tempdir = "/tmp"  # a short path
        util.get_temp_dir()
        tempfile.tempdir = usual


def settle() -> None:
    """Make this process a worker: it ignores Ctrl-C, logs errors, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("flwr").setLevel(logging.ERROR)


def _end_with_parent() -> None:
    """Wait until the process that started the pool ends, even by SIGKILL, then exit."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module from ``multiprocessing`` within the block.

    Otherwise every worker executes the user's script again, which fails without a guard ``if
    __name__ == "__main__"``. ``multiprocessing`` has no option for this.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
