"""The ray runtime on an existing Ray cluster: each message is a Ray task.

Flower's simulation is not used, because its pool hands out actors that are dead. Ray repeats a task
on another node if the node dies. This is safe: a client reads its states of earlier rounds, and its
new state replaces the state that the first attempt stored.
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
from deploy import user_modules
from deploy.run.loopback import Envelope, Nodes, Work, serve

RETRIES = 3  #: further attempts to serve a message if its process or node is lost
CONNECT = 10.0  #: seconds within which the cluster's head must accept a connection
INSPECT = 120.0  #: seconds within which every node must check the shared folders


@final
class Cluster(Nodes):
    """``Nodes`` that a Ray cluster serves; this machine must run a node of the cluster.

    A message takes one processor of a node, and with ``gpu`` one GPU; Ray hides all other GPUs.
    ``shared``: folders that every node must have.

    Raises ``ValueError``, one line: no connection to ``address``, another version of Ray, or a node
    without this code or a shared folder.
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
        )(_on_node("answer"))
        self._put: dict[int, tuple[bytes, ray.ObjectRef[bytes]]] = {}

    def __exit__(self, *error: object) -> None:
        """Disconnect from the cluster, which ends this run's tasks."""
        self._put.clear()
        ray.shutdown()

    def _submit(self, work: Work) -> Future[list[bytes]]:
        content, envelopes = work
        cached = {id(packed) for _, packed in self._packed.values()}
        self._put = {name: put for name, put in self._put.items() if name in cached}
        if id(content) not in self._put:  # a node fetches content for several clients only once
            self._put[id(content)] = content, ray.put(content)
        task = self._task.remote(self._put[id(content)][1], envelopes, self._config)
        future: Future[list[bytes]] = task.future()
        return future


def answer(content: bytes, envelopes: list[Envelope], run_config: dict[str, Value]) -> list[bytes]:
    """Serve messages on a node, with the user's modules importable; return the replies."""
    if plugins := run_config["plugins"]:
        user_modules.look_in(Path(str(plugins)), run_config)
    return serve(content, envelopes, run_config)


def inspect(path: str) -> tuple[str, bool]:
    """Return a node's code version, and whether the file exists there."""
    return code_version(), Path(path).exists()


def _on_node(name: str) -> Callable[..., Any]:
    """Return this module's function ``name`` in a form that Ray can send to a node.

    Ray serializes a nested function completely, and others by module name. A node with fedmosaic
    installed can import the module only after ``import fedmosaic`` has extended ``sys.path``.
    """

    def task(*arguments: object) -> object:
        if find_spec("deploy") is None:
            import_module("fedmosaic")
        return getattr(import_module("deploy.run.cluster"), name)(*arguments)

    return task


def _connect(address: str) -> None:
    """Connect to the cluster; raise ``ValueError``, one line, if that fails."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
    except OSError as error:
        raise ValueError(f"--ray-address {address}: no connection is possible ({error})") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError, RayError) as error:
        line = " ".join(str(error).split())[:300]
        raise ValueError(f"--ray-address {address}: Ray refuses: {line}") from None


def _check_nodes(address: str, shared: list[Path]) -> None:
    """Raise ``ValueError`` if a node with a processor lacks this code or a shared folder."""
    known = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [n for n in known if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise ValueError(f"--ray-address {address}: no node of the cluster has a processor")
    for folder in shared:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".shared-") as file:
            results = {_named(node): _inspect_on(node["NodeID"], file.name) for node in nodes}
            for name, result in results.items():
                _check_node(name, result, folder)


def _inspect_on(node: str, path: str) -> ray.ObjectRef[tuple[str, bool]]:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(  # type: ignore[call-overload]  # Ray's types lack this strategy
        num_cpus=0, max_retries=0, scheduling_strategy=strategy
    )(_on_node("inspect"))
    result: ray.ObjectRef[tuple[str, bool]] = task.remote(path)
    return result


def _check_node(name: str, result: ray.ObjectRef[tuple[str, bool]], folder: Path) -> None:
    try:
        version, exists = ray.get(result, timeout=INSPECT)
    except GetTimeoutError:
        raise ValueError(f"Ray's node {name} has not answered within {INSPECT:g} s") from None
    except RayError as error:
        line = first_line(str(error).strip().rpartition("\n")[2], 300)
        raise ValueError(f"Ray's node {name} cannot run fedmosaic: {line}") from None
    if version != code_version():
        raise ValueError(f"Ray's node {name} has other code: {version}, here {code_version()}")
    if not exists:
        raise ValueError(
            f"Ray's node {name} does not have {folder}: clients move between nodes, so their "
            "states need a folder that all nodes share; set out or state-dir to one"
        )


def _named(node: Mapping[str, object]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
