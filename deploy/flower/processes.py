"""Processes of a run on this machine, each with a log file, which all end together.

A run starts only Flower's own executables. Each gets an environment without the files of another
Flower installation, an empty working directory and a log, and is always ended (``watchdog.py``).
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, final

from deploy.flower import watchdog

GRACE = 3.0  #: seconds between SIGTERM and SIGKILL
POLL = 0.1  #: seconds between two checks of starting processes
DROPPED = (
    *("FORCE_COLOR", "PYTHONPATH", "FEDMOSAIC_TRUST", "FEDMOSAIC_APP_DIGEST"),
    *("FEDMOSAIC_NODE_RULES", "FEDMOSAIC_WARM"),
)
"""Variables of the user's environment that are removed."""


def executable(name: str) -> str:
    """Return the path of one of Flower's programs, next to the running Python or on PATH.

    Raises ``RuntimeError`` if it is in neither location.
    """
    adjacent = Path(sys.executable).parent / name
    path = str(adjacent) if os.access(adjacent, os.X_OK) else shutil.which(name)
    if path is None:
        raise RuntimeError(
            f"{name} was found neither in {adjacent.parent} nor on PATH: install flwr into "
            "the environment of this Python"
        )
    return path


def own_program(module: str, call: str) -> list[str]:
    """Return the command of ``call`` in ``deploy.flower.module`` of this installation.

    ``module`` may be in a package, as ``owner.pinned``.

    The interpreter has its absolute path, so that PATH, and files that cannot be executed, do not
    decide what runs. If the module cannot be imported, the program ends with one line and status 1.
    """
    root = str(Path(__file__).resolve().parents[2])
    package, _, name = f"deploy.flower.{module}".rpartition(".")
    source = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        f"try: from {package} import {name}\n"
        f"except Exception as error: sys.exit(f'error: deploy.flower.{module}: {{error}}')\n"
        f"del sys.path[0]; {name}.{call}"
    )
    return [sys.executable, "-P", "-c", source]


def write_program(path: Path, command: Sequence[str]) -> Path:
    """Write an executable that runs ``command`` with its own arguments appended; return its
    path.
    """
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    return path


def direct_hosts() -> str:
    """Return the hosts that are reached without a proxy, separated by commas.

    They are those of both spellings of ``no_proxy``, and this machine.
    """
    named = [*filter(None, map(os.environ.get, ("no_proxy", "NO_PROXY"))), "127.0.0.1,localhost"]
    return ",".join(dict.fromkeys(",".join(named).replace(" ", "").split(",")))


def environment(extra: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of a Flower process, which its ServerApp or ClientApp inherits.

    ``home``: folder of Flower's files (apps, configuration); ``extra`` overrides other variables.
    Flower starts its inner programs (flower-superexec, flwr-serverapp, flwr-clientapp) by name, so
    the directory of the running Python is first on PATH.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLWR_", "RAY_")) and name not in DROPPED
    }
    modules = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if modules:  # relative entries would be wrong in the new working directory
        inherited["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in modules)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    direct = direct_hosts()
    return {
        **inherited,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "no_proxy": direct,
        "NO_PROXY": direct,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **extra,
    }


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports that are free at 127.0.0.1 at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def ending(status: int) -> str:
    """Return how a process with this status of ``Popen.poll`` has ended, as the rest of a line."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-status}"


def plain(text: str) -> str:
    """Return ``text`` without the colour codes of Flower's logger."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last ``lines`` lines of a log, indented, or a note if it is empty or missing."""
    text = plain(log.read_text(errors="replace")) if log.exists() else ""
    last = [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"    {line}" for line in last) or "    (the log is empty)"


@final
class Processes:
    """Context manager of processes that are started one by one and ended together at its exit.

    They also end if this process is killed: a watchdog process reads the other end of a pipe.
    """

    def __init__(self, work: Path, quiet: bool = True) -> None:
        """Set the folder ``work`` (absolute) for ``logs/NAME.log`` and the working directory.

        Unless ``quiet``, the processes write to this process's output instead of logs.
        """
        assert work.is_absolute(), work
        self._quiet = quiet
        self.logs = work / "logs"
        self.empty = work / "empty"
        self.started: dict[str, subprocess.Popen[bytes]] = {}  #: each is a session leader
        self._spared: set[str] = set()
        self._last: set[str] = set()
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self.empty.mkdir(parents=True, exist_ok=True)
        script = str(Path(watchdog.__file__).resolve())
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(os.getpid()), str(GRACE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.empty,
            start_new_session=True,
        )
        return self

    def start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        last: bool = False,
        inherited: Sequence[int] = (),
    ) -> None:
        """Start ``command`` in a new session, with its output in ``logs/name.log``.

        ``last``: end it after the other processes, which may disconnect from it at their end.
        ``inherited``: descriptors that it inherits.
        """
        assert name not in self.started, name
        self._last |= {name} if last else set()
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [executable(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log if self._quiet else None,
                stderr=subprocess.STDOUT if self._quiet else None,
                cwd=self.empty,
                env=dict(env),
                start_new_session=True,
                pass_fds=tuple(inherited),
            )
        self.started[name] = process
        self._tell(process.pid)

    def log(self, name: str) -> Path:
        """Return the log file of the process ``name``."""
        return self.logs / f"{name}.log"

    def spare(self, name: str) -> None:
        """Allow the process ``name`` to end by itself from now on."""
        self._spared.add(name)

    def forget(self, name: str) -> None:
        """Remove the process ``name``, which has ended with its session."""
        process = self.started.pop(name)
        self._spared.discard(name)
        assert process.poll() is not None, name
        self._tell(-process.pid)

    def _tell(self, session: int) -> None:
        assert self._watchdog is not None and self._watchdog.stdin is not None
        self._watchdog.stdin.write(b"%d\n" % session)
        self._watchdog.stdin.flush()

    def check(self) -> None:
        """Raise ``RuntimeError`` if a process has ended by itself and is not spared.

        The message has its name, its exit status and the end of its log.
        """
        for name, process in self.started.items():
            if name not in self._spared and (status := process.poll()) is not None:
                log = self.log(name)
                raise RuntimeError(
                    f"{name} {ending(status)}; its log is {log} and ends:\n{tail(log)}"
                )

    def wait(self, ready: Callable[[], bool], what: str, patience: float) -> None:
        """Wait until ``ready()`` is true, and check that no process ends meanwhile.

        A ``grpc.RpcError`` in ``ready``, as from a slow SuperLink, counts as not ready. ``what``
        describes the wait in the message.

        Raises ``RuntimeError`` if a process ends or after ``patience`` seconds.
        """
        import grpc  # takes 20 MB, which a node's supervisor does not need

        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(grpc.RpcError):
                if ready():
                    return
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"waited {patience:.0f} s in vain for {what}; the logs are in {self.logs}, the "
                    f"SuperLink's ends:\n{tail(self.log('superlink'))}"
                )
            time.sleep(POLL)

    def __exit__(self, *error: object) -> None:
        """End every process with all its children."""
        for names in (self.started.keys() - self._last, self._last):
            # one that could not be started has no process
            watchdog.end({self.started[n].pid for n in names & self.started.keys()}, GRACE)
        for process in self.started.values():
            process.wait()
        self.started, self._spared, self._last = {}, set(), set()
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
