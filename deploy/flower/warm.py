"""Warm start for the gRPC runtime: fork a process per message from one with all imports done.

A SuperNode starts a process per message, and importing Flower and torch in it takes seconds of CPU
time. One process with all imports forks a child for each request (``warm_client.py``). The child
runs Flower's own entry point with the arguments, environment, working directory and output files of
the request. Messages, isolation and results are those of a cold start. The app's modules are never
preloaded, because each child must import them from its bundle.

A SuperNode sends its requests by itself (``supernode.py``). A SuperLink finds its inner programs by
name on PATH, where a folder of stand-ins is first.

A node keeps its warm process only while there is work (``supervise``): without a request for
``LINGER`` seconds it ends, and the next request starts another one. An idle client then needs only
the SuperNode and this supervisor, which imports neither torch nor gRPC.

Linux only: on other systems, forking after these imports is not safe.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NoReturn

from deploy.flower import warm_client, watchdog
from deploy.flower.owner import pinned
from deploy.flower.processes import (
    Processes,
    ending,
    environment,
    executable,
    own_program,
    write_program,
)

PROGRAMS = ("flower-superexec", "flwr-serverapp")  #: those that a SuperLink starts
#: preloaded if installed; none of them may start a thread or use a GPU
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
LINGER = 120.0  #: seconds without a request or a client process until a warm process may end
POLL = 0.5  #: seconds between two checks of a supervisor
RESTART_DELAY = 30.0  #: seconds until another warm process may start after one that failed
STUCK = 30  #: longest time in seconds for a SuperNode to end; gRPC sometimes hangs at exit
STALL = 5.0  #: longest time in seconds for one request, because the others wait


@contextlib.contextmanager
def stand_ins() -> Iterator[Path]:
    """Yield a folder with a stand-in for each of ``PROGRAMS``, to put first on PATH."""
    with tempfile.TemporaryDirectory(prefix="warm-") as name:  # a short path, private to this user
        folder = Path(name)
        for program in PROGRAMS:
            command = [executable(program)]
            write_program(
                folder / program, warm_client.command(str(folder / SOCKET), program, command)
            )
        yield folder


def possible() -> bool:
    """Return whether stand-ins work: on Linux, if temporary files can be executed."""
    if sys.platform != "linux":
        return False
    return not os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC


def start(processes: Processes, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Start the warm process for the stand-ins in ``folder``, as ``warm`` in ``processes``.

    Return the variables by which a SuperLink and SuperNodes use it.

    ``env`` must be the environment of the SuperLink and the SuperNodes, except FLWR_HOME. Packages
    read some variables on import (OMP_NUM_THREADS), and these have the warm process's values. If
    the warm process ends, its clients start cold processes.
    """
    address = str(folder / SOCKET)
    _start(processes, env, repr(address))
    path = os.pathsep.join([str(folder), env["PATH"]])
    return {"PATH": path, warm_client.ADDRESS: address}


def _start(processes: Processes, env: Mapping[str, str], place: str, *inherited: int) -> None:
    processes.start("warm", own_program("warm", f"serve({place})"), env, inherited=inherited)
    processes.spare("warm")


def ready(processes: Processes, folder: Path) -> bool:
    """Return whether the warm process accepts requests or has ended."""
    return (folder / SOCKET).exists() or processes.started["warm"].poll() is not None


def hand_over(line: Sequence[str], home: Path, guard: Mapping[str, str]) -> NoReturn:
    """Replace this process by a supervisor (``supervise``), which has none of its imports."""
    order = json.dumps([list(line), str(home), dict(guard)])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*own_program("warm", "supervisor()"), order])


def supervisor() -> NoReturn:
    """Run ``supervise`` with the arguments of ``hand_over``, and exit with its status."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("fedmosaic")  # the name in top and ps
    line, home, guard = json.loads(sys.argv[1])
    try:
        sys.exit(supervise(line, Path(home), guard))
    except OSError as error:  # such as a file system without sockets
        sys.exit(f"error: --home {home}: a warm start does not work there: {error}")


def supervise(
    line: Sequence[str], home: Path, guard: Mapping[str, str], linger: float = LINGER
) -> int:
    """Run a SuperNode and, while it has work, a warm process; return the SuperNode's exit status.

    ``line``: the SuperNode's command; ``home``: folder of its files; ``guard``: its variables for
    ``pinned.py``; ``linger``: seconds without work until the warm process ends. SIGTERM and SIGINT
    end both processes. For ``RESTART_DELAY`` seconds after a warm process that failed or was
    killed, for example for memory, the SuperNode starts cold processes.
    """
    with Processes(home, quiet=False) as processes, _listening(home) as (listener, address):
        env = environment(guard, home)
        place = listener.fileno()
        _start(processes, env, f"'', {place}, {linger}", place)
        processes.start("supernode", line, {**env, warm_client.ADDRESS: address})
        supernode = processes.started["supernode"]

        stopping = False

        def stop(*_: object) -> None:
            nonlocal stopping
            stopping = True
            if (warm := processes.started.get("warm")) is not None:
                watchdog.kill({warm.pid})  # nobody takes the reply of a ClientApp any more
            supernode.terminate()
            signal.alarm(STUCK)

        signal.signal(signal.SIGALRM, lambda *_: supernode.kill())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        no_restart_before = 0.0
        while (status := supernode.poll()) is None:
            warm = processes.started.get("warm")
            if warm is not None and (exit_status := warm.poll()) is not None:
                processes.forget("warm")
                if exit_status and not stopping:
                    print(f"warning: the warm process {ending(exit_status)}", flush=True)
                    no_restart_before = time.monotonic() + RESTART_DELAY
            waiting = [] if "warm" in processes.started or stopping else [listener]
            if not select.select(waiting, [], [], POLL)[0]:
                continue
            if time.monotonic() < no_restart_before:
                listener.accept()[0].close()  # the client starts a cold process
            else:
                _start(processes, env, f"'', {place}, {linger}", place)
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _listening(home: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket that listens, made in the folder ``home``, and its address.

    The address is this process's handle of the socket's file. The file is deleted at once, so that
    nobody else can delete or replace it. The handle of the folder shortens the path, because a
    socket's name has at most 107 characters.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        with tempfile.TemporaryDirectory(prefix="warm-", dir=home) as name:
            folder = os.open(name, os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
            file = os.open(Path(name, SOCKET), os.O_PATH)
            stack.callback(os.close, file)
        listener.listen(128)
        yield listener, f"/proc/{os.getpid()}/fd/{file}"


def serve(path: str, descriptor: int | None = None, linger: float | None = None) -> None:
    """Import all packages, then fork a child for every request.

    ``path``: where to make the socket; not used with the ``descriptor`` of a supervisor's socket.
    Return after ``linger`` seconds without a request and without a child; None: never. Requests
    that arrive later wait in the socket for the next warm process.
    """
    for package in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    entries = distribution("flwr").entry_points
    served = (*PROGRAMS, pinned.PROGRAM)
    mains = {entry.name: entry.load() for entry in entries if entry.name in served}
    mains[pinned.PROGRAM] = functools.partial(pinned.main, mains[pinned.PROGRAM])
    gc.collect()
    gc.freeze()  # the children's collector skips these objects, so that their memory stays shared
    with socket.socket(socket.AF_UNIX, fileno=descriptor) as listener:
        if descriptor is None:
            listener.bind(path)
            listener.listen(128)
        listener.settimeout(linger)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if len(watchdog.living({os.getsid(0)})) > 1:
                    continue  # a client process is at work
                return
            with connection, contextlib.suppress(OSError, ValueError):
                _take_over(connection, listener, mains)


def _take_over(
    connection: socket.socket, listener: socket.socket, mains: Mapping[str, Callable[[], None]]
) -> None:
    """Fork a child for the request of ``connection`` if the client confirms it."""
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


def _log_from(level: str) -> None:
    """Set the level of Flower's log, which it reads from the environment on import only."""
    from flwr.common.logger import update_console_handler

    with contextlib.suppress(ValueError):  # an unknown level
        update_console_handler(level=level, timestamps=level == "DEBUG")


def _become(mains: Mapping[str, Callable[[], None]], request: Any, outputs: list[int]) -> None:
    """Run the requested program in the child; never returns."""
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
        _log_from(os.environ.get("FLWR_LOG_LEVEL", "INFO").upper())
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(sys.argv[0][:15])  # the name in top and ps
        mains[sys.argv[0]]()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # a child that continued would be a second warm process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
