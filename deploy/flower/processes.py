"""The processes of a run on this machine: each with a log file, all of them ended together.

A run starts Flower's own executables and nothing else. This file knows what every one of
them needs: an environment that names no other Flower installation's files, an empty working
directory, a log, and an end that is certain (``watchdog.py``).
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

import grpc

from deploy.flower import watchdog

GRACE = 3.0  #: seconds between SIGTERM and SIGKILL
POLL = 0.1  #: seconds between two looks at processes that start
DROPPED = ("FORCE_COLOR", "PYTHONPATH", "FEDMOSAIC_TRUST", "FEDMOSAIC_APP_DIGEST")
"""Of the user's own environment."""


def executable(name: str) -> str:
    """Path of one of Flower's programs, first beside the running Python, then on PATH.

    Raises ``RuntimeError``: it is in neither place.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"{name} was found neither in {beside.parent} nor on PATH: install flwr into "
            "the environment of this Python"
        )
    return found


def write_program(path: Path, command: Sequence[str]) -> Path:
    """Write an executable that becomes ``command`` with the arguments that it gets; its path."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    return path


def environment(extra: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment of a Flower process whose own files (apps, configuration) lie in ``home``,
    and so of the ServerApp or the ClientApp below it; ``extra`` wins over the rest.

    Flower starts its inner programs (flower-superexec, flwr-serverapp, flwr-clientapp) by name, so
    the directory of the running Python comes first on PATH.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLWR_", "RAY_")) and name not in DROPPED
    }
    modules = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if modules:  # relative entries would mean another folder in the new working directory
        inherited["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in modules)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    loopback = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))
    return {
        **inherited,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "no_proxy": loopback,
        "NO_PROXY": loopback,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **extra,
    }


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that nobody listens on at 127.0.0.1 at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _killed(number: int) -> str:
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {number}"


def plain(text: str) -> str:
    """``text`` without the colours that Flower's logger gives it unasked."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def tail(log: Path, lines: int = 15) -> str:
    """The last ``lines`` lines of a log, indented; a line in place of an empty or missing one."""
    text = plain(log.read_text(errors="replace")) if log.exists() else ""
    last = [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"    {line}" for line in last) or "    (the log is empty)"


@final
class Processes:
    """A context of processes: started one by one, ended together when the context is left.

    They also end when this process is killed: a watchdog process holds the other end of a pipe.
    """

    def __init__(self, work: Path, quiet: bool = True) -> None:
        """``work`` (absolute) gets ``logs/NAME.log`` and the empty working directory ``empty``.

        Unless ``quiet``, output goes where this process's own goes instead of to logs.
        """
        assert work.is_absolute(), work
        self._quiet = quiet
        self.logs = work / "logs"
        self.empty = work / "empty"
        self.started: dict[str, subprocess.Popen[bytes]] = {}  #: each leads a session
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
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, last: bool = False
    ) -> None:
        """Start ``command`` in a session of its own, its output going to ``logs/name.log``.

        ``last``: end it after the others, which may want to sign off there.
        """
        assert name not in self.started, name
        assert self._watchdog is not None and self._watchdog.stdin is not None
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
            )
        self.started[name] = process
        self._watchdog.stdin.write(b"%d\n" % process.pid)
        self._watchdog.stdin.flush()

    def log(self, name: str) -> Path:
        """The log file of the process called ``name``."""
        return self.logs / f"{name}.log"

    def spare(self, name: str) -> None:
        """From now on the process called ``name`` may end by itself."""
        self._spared.add(name)

    def check(self) -> None:
        """Raise ``RuntimeError`` when a process has ended by itself, unless it has been spared;
        with its name, its exit status and the end of its log.
        """
        for name, process in self.started.items():
            if name not in self._spared and (status := process.poll()) is not None:
                how = f"ended with status {status}" if status >= 0 else _killed(-status)
                raise RuntimeError(
                    f"{name} {how}; its log is {self.log(name)} and ends:\n{tail(self.log(name))}"
                )

    def wait(self, ready: Callable[[], bool], what: str, patience: float) -> None:
        """Wait for ``ready()``, watching that no process ends meanwhile.

        A ``grpc.RpcError`` of it, such as that of a SuperLink which is slow to answer, is a "not
        yet".

        Raises ``RuntimeError``: a process ended, or ``patience`` seconds passed.
        """
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
        """End every process and all that they started."""
        for names in (self.started.keys() - self._last, self._last):
            watchdog.end({self.started[name].pid for name in names}, GRACE)
        for process in self.started.values():
            process.wait()
        self.started, self._spared, self._last = {}, set(), set()
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
