"""The ray runtime on a Ray cluster that is there already: each message is one of Ray's tasks.

Flower's simulation keeps a pool of actors and hands a dead one out again. A task whose node dies is
begun anew by Ray on another one. It may: a client reads what it kept of earlier rounds, and what it
keeps of this round replaces what a first attempt has kept.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.errors import first_line
from common.settings.config import Value
from common.settings.version import code_version
from deploy.run import user_modules
from deploy.run.loopback import Letter, Nodes, Work, serve

RETRIES = 3  #: further attempts at a message whose process or node is gone
ANSWER = 10.0  #: seconds within which the cluster's head takes a connection
LOOK = 120.0  #: seconds within which every node has looked at the shared folders


@final
class Cluster(Nodes):
    """``Nodes`` that the nodes of a Ray cluster serve; a node of it runs on this machine.

    A message takes one processor of a node, and one GPU too if ``gpu``; Ray hides other GPUs.
    ``shared``: folders that every node must have.

    Raises ``ValueError``, one line: nobody answers at ``address``, it is no cluster of this Ray, or
    a node lacks this code or a shared folder.
    """

    lost = (RayError, MemoryError, OSError)

    def __init__(
        self,
        clients: int,
        run_config: Mapping[str, Value],
        address: str,
        *,
        shared: list[Path],
        gpu: bool = False,
    ) -> None:
        super().__init__(clients, run_config)
        _connect(address)
        try:
            _check_nodes(address, shared)
            self._config = ray.put(self._run_config)
        except BaseException:
            ray.shutdown()
            raise
        self._task = ray.remote(
            num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES, scheduling_strategy="SPREAD"
        )(_on_a_node("answer"))
        self._put: dict[int, tuple[bytes, ray.ObjectRef[bytes]]] = {}

    def __exit__(self, *error: object) -> None:
        """Leave the cluster, which ends this run's tasks."""
        self._put.clear()
        ray.shutdown()

    def _submit(self, work: Work) -> Future[list[bytes]]:
        content, letters = work
        held = {id(packed) for _, packed in self._packed.values()}
        self._put = {name: put for name, put in self._put.items() if name in held}
        if id(content) not in self._put:  # each node fetches once what everybody receives
            self._put[id(content)] = content, ray.put(content)
        task = self._task.remote(self._put[id(content)][1], letters, self._config)
        future: Future[list[bytes]] = task.future()
        return future


def answer(content: bytes, letters: list[Letter], run_config: dict[str, Value]) -> list[bytes]:
    """On a node: what clients answer to messages; modules of the user's own are found."""
    if plugins := run_config["plugins"]:
        user_modules.look_in(Path(str(plugins)), run_config)
    return serve(content, letters, run_config)


def look(path: str) -> tuple[str, bool]:
    """On a node: its code, and whether it sees the file."""
    return code_version(), Path(path).exists()


def _on_a_node(name: str) -> Callable[..., Any]:
    """This module's function ``name`` as Ray takes it to a node.

    Ray sends a function within a function whole, and others by their module's name. A node that has
    fedmosaic installed finds the module once that has put its packages on the path.
    """

    def task(*arguments: object) -> object:
        if find_spec("deploy") is None:
            import_module("fedmosaic")
        return getattr(import_module("deploy.run.cluster"), name)(*arguments)

    return task


def _connect(address: str) -> None:
    """Join the cluster, or say in one line why that cannot be."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except OSError as error:
        raise ValueError(f"--ray-address {address}: nobody answers there ({error})") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError, RayError) as error:
        line = " ".join(str(error).split())[:300]
        raise ValueError(f"--ray-address {address}: Ray refuses: {line}") from None


def _check_nodes(address: str, shared: list[Path]) -> None:
    """Raise ``ValueError`` unless all nodes that may serve have this code and these folders."""
    known = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [n for n in known if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise ValueError(f"--ray-address {address}: no node of the cluster has a processor to lend")
    for folder in shared:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".shared-") as file:
            looks = {_named(node): _look_from(node["NodeID"], file.name) for node in nodes}
            for name, seen in looks.items():
                _check_node(name, seen, folder)


def _look_from(node: str, path: str) -> ray.ObjectRef[tuple[str, bool]]:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(  # type: ignore[call-overload]  # Ray's types forget this strategy
        num_cpus=0, max_retries=0, scheduling_strategy=there
    )(_on_a_node("look"))
    found: ray.ObjectRef[tuple[str, bool]] = task.remote(path)
    return found


def _check_node(name: str, look: ray.ObjectRef[tuple[str, bool]], folder: Path) -> None:
    try:
        version, seen = ray.get(look, timeout=LOOK)
    except GetTimeoutError:
        raise ValueError(f"Ray's node {name} has not answered within {LOOK:g} s") from None
    except RayError as error:
        line = first_line(str(error).strip().rpartition("\n")[2], 300)
        raise ValueError(f"Ray's node {name} cannot run fedmosaic: {line}") from None
    if version != code_version():
        raise ValueError(f"Ray's node {name} has other code: {version}, here {code_version()}")
    if not seen:
        raise ValueError(
            f"Ray's node {name} does not see {folder}: clients move between nodes, so what they "
            "keep needs a folder that all nodes share; set out or state-dir to one"
        )


def _named(node: Mapping[str, object]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
