"""A SuperNode's task loop that looks often and forks at once, in place of ``flower-superexec``.

Flower's own loop looks for a task once a second and starts a program for it. This one runs in a
child of the warm process (``warm.py``), asks the same gRPC interface (ClientAppIo's
PullPendingTasks and ClaimTask) twenty times a second while there is work, and hands the very
command that Flower would start to the warm process. It serves ClientApps without TLS inside one
machine, which is how a SuperNode starts it; for any other arguments, and after any error, Flower's
own program runs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import grpc
from flwr.proto.appio_pb2 import ClaimTaskRequest, PullPendingTasksRequest
from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub

from deploy.flower.warm_client import hand_over

PAUSES = (0.05, 0.5)  #: seconds between two looks: right after a task, and after long idleness
IDLE = 60.0  #: seconds without a task in which the pause grows by one
CLIENT_APP = "flwr-clientapp"  #: Flower's name for both the type of task and the program


@final
@dataclass(frozen=True)
class Service:
    """What a SuperNode asks of its ``flower-superexec``."""

    address: str  #: of the SuperNode's ClientAppIo API
    parent: int  #: process id of the SuperNode


def service(arguments: Sequence[str]) -> Service | None:
    """What the arguments of ``flower-superexec`` ask for; None if it is not what is served here."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        options[option] = "" if option == "--insecure" or not rest else rest.pop(0)
    known = {"--insecure", "--appio-api-address", "--plugin-type", "--parent-pid"}
    if options.keys() != known or options["--plugin-type"] != "clientapp":
        return None
    if not options["--parent-pid"].isdigit():
        return None
    return Service(options["--appio-api-address"], int(options["--parent-pid"]))


def dispatch(service: Service, begin: Callable[[list[str]], None]) -> None:
    """Begin every task of the SuperNode until it ends.

    ``begin`` gets the arguments of ``flwr-clientapp`` and returns at once.

    Raises ``RuntimeError``: the SuperNode has another kind of task than this loop can start.
    ``grpc.RpcError``: the SuperNode lives, but does not answer as expected.
    """
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(service.address, options) as channel:
        stub = ClientAppIoStub(channel)
        last = time.monotonic()
        while _alive(service.parent):
            if (token := _next_task(stub)) is not None:
                begin(command(service, token))
                last = time.monotonic()
            time.sleep(pause(time.monotonic() - last))


def pause(idle: float) -> float:
    """Seconds until the next look, ``idle`` seconds after the last task.

    An idle node costs next to no processor time, and waits long only after long idleness.
    """
    return min(PAUSES[0] + idle / IDLE, PAUSES[1])


def command(service: Service, token: str) -> list[str]:
    """The arguments with which ``flower-superexec`` would start ``flwr-clientapp``."""
    where = ["--clientappio-api-address", service.address, "--token", token]
    return [*where, "--insecure", "--parent-pid", str(os.getpid())]


def start(address: str, arguments: list[str]) -> None:
    """Hand ``flwr-clientapp`` to the warm process at ``address``, or start it anew."""
    if not hand_over(address, CLIENT_APP, arguments):
        subprocess.Popen([CLIENT_APP, *arguments])


def _next_task(stub: ClientAppIoStub) -> str | None:
    """The token of the next task, if there is one and nobody else has taken it.

    Without a time limit: a token that is granted too late to be read would be a task lost.
    """
    try:
        pending = stub.PullPendingTasks(PullPendingTasksRequest()).tasks
        if not pending:
            return None
        if pending[0].type != CLIENT_APP:
            raise RuntimeError(f"a task of type {pending[0].type!r}")
        taken = stub.ClaimTask(ClaimTaskRequest(task_id=pending[0].task_id))
        return taken.token or None
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
            return None  # it is about to end, which the next look at its process tells
        raise


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie, whose parent has not looked yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
