"""A warm start for the gRPC runtime: fork what Flower would start anew for every message.

A SuperNode starts a process per message and imports Flower and torch in it, which takes seconds of
processor time. Flower finds its inner programs by name on PATH. So a folder of stand-ins
(``warm_client.py``) goes first on PATH, and one process that has imported everything forks a child
for each of them, which then runs Flower's own entry point with the very arguments, environment,
working directory and output files. Messages, isolation and results are those of the plain start;
the app's own modules are never imported ahead, since each child must take them from its bundle.

Linux only: elsewhere a process that has imported this much cannot be trusted to fork.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from deploy.flower import pinned, warm_client
from deploy.flower.processes import Processes, executable, write_program

PROGRAMS = ("flower-superexec", "flwr-serverapp", "flwr-clientapp")
#: imported ahead where they are installed; nothing here may start a thread or touch a GPU
PACKAGES = (
    "numpy",
    "torch",
    "torch._dynamo",  # every first step of a torch optimiser imports it
    "pydantic.main",
    "jaxtyping",
    "PIL.Image",
    "safetensors.torch",
    "flwr.app",
)
SOCKET = "s"  #: file name in the folder of stand-ins
STALL = 5.0  #: seconds that a request may keep the others waiting


@contextlib.contextmanager
def stand_ins(real: Mapping[str, Path] | None = None) -> Iterator[Path]:
    """A folder to put first on PATH, with a stand-in for each of ``PROGRAMS``.

    ``real``: programs, by name, to start in place of Flower's when nothing is warm.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as name:  # short, and only this user's
        folder = Path(name)
        for program in PROGRAMS:
            behind = (real or {}).get(program) or executable(program)
            client = [sys.executable, "-I", "-S", str(Path(warm_client.__file__).resolve())]
            write_program(folder / program, [*client, str(folder / SOCKET), str(behind)])
        yield folder


def pinning(folder: Path) -> Path:
    """Write the program that runs pinned bundles alone (``pinned.py``) to ``folder``; its path."""
    command = [sys.executable, "-P", str(Path(pinned.__file__).resolve())]
    return write_program(folder / pinned.PROGRAM, command)


def possible() -> bool:
    """Whether this machine can start warm: Linux, and programs may lie among temporary files."""
    if sys.platform != "linux":
        return False
    return not os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC


def start(processes: Processes, folder: Path, env: Mapping[str, str]) -> None:
    """Start the warm process of the stand-ins in ``folder``, among ``processes`` as ``warm``.

    ``env`` must be the environment of the SuperLink and the SuperNodes, apart from FLWR_HOME:
    variables that packages read when they are imported (OMP_NUM_THREADS) are the warm process's.
    If it ends, the stand-ins start the real programs.
    """
    source = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); "
    source += f"from deploy.flower.warm import serve; serve({str(folder / SOCKET)!r})"
    processes.start("warm", [Path(sys.executable).name, "-P", "-c", source], env)
    processes.spare("warm")


def ready(processes: Processes, folder: Path) -> bool:
    """Whether the warm process takes requests, or never will."""
    return (folder / SOCKET).exists() or processes.started["warm"].poll() is not None


def serve(address: str) -> None:
    """Import everything, then fork a child for every request at ``address``, for ever."""
    del sys.path[0]  # this repository: the children import the app from its bundle
    for package in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    known = distribution("flwr").entry_points
    mains = {entry.name: entry.load() for entry in known if entry.name in PROGRAMS}
    mains[pinned.PROGRAM] = functools.partial(pinned.main, mains[pinned.PROGRAM])
    gc.collect()
    gc.freeze()  # children never walk these objects, so their memory stays shared
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                _take_over(connection, listener, mains)


def _take_over(
    connection: socket.socket, listener: socket.socket, mains: Mapping[str, Callable[[], None]]
) -> None:
    """Fork a child for the request of ``connection``, if the other side still wants it."""
    connection.settimeout(STALL)
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    try:
        with connection.makefile("rb") as file:
            request = json.loads(file.readline())
        connection.sendall(warm_client.READY)
        if connection.recv(1) != warm_client.AGREED:
            return
        if os.fork() == 0:
            listener.close()
            connection.close()
            _become(mains, request, outputs)
        connection.sendall(warm_client.FORKED)
    finally:
        for output in outputs:
            os.close(output)


def _become(mains: Mapping[str, Callable[[], None]], request: Any, outputs: list[int]) -> None:
    """Be the requested program, in the child; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
            os.close(output)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["argv"]
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(sys.argv[0][:15])  # what top and ps show
        mains[sys.argv[0]]()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # a child that went on would be a second warm process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
