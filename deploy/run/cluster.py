"""The ray runtime: each message is a Ray task, on this machine or on the nodes of a Ray cluster.

Flower's simulation is not used, because its pool hands out actors that are dead. Ray repeats a task
on another node if the node dies. This is safe: a client reads its states of earlier rounds, and its
new state replaces the state that the first attempt stored.
"""

import logging
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, final

import ray
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.errors import first_line
from common.settings.config import Value
from common.settings.version import code_version
from deploy import user_modules
from deploy.flower.processes import Processes, environment, free_ports
from deploy.run.loopback import Envelope, Nodes, Work, serve

RETRIES = 3  #: further attempts to serve a message if its process or node is lost
CONNECT = 10.0  #: seconds within which the cluster's head must accept a connection
START = 300.0  #: seconds within which Ray must start on this machine
LOCAL = {
    # Ray runs Python between fork and exec. There, gRPC's fork handlers end the child with a
    # segmentation fault in one of three starts (grpcio 1.85, Ray 2.55).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Ray reads this only on other systems; here it binds all of Ray's sockets to 127.0.0.1
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # hide no GPU: the run config names the device
    "RAY_raylet_start_wait_time_s": f"{START:.0f}",  # Ray's default is too short under load
}
INSPECT = 120.0  #: seconds within which every node must check the shared folders


@contextmanager
def local(work: Path) -> Iterator[str]:
    """Start Ray on this machine for the time of the block, and yield its address.

    ``work``: folder for ``logs/ray.log``. Ray listens on 127.0.0.1 only and ends with this process.

    Raises ``RuntimeError`` with the end of the log if Ray does not start.
    """
    # The driver's counterpart of the variable of ``LOCAL``, which is read when Ray is imported
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    # Ray's sockets need a short path; the end of the block removes the files of Ray
    with (
        ExitStack() as stack,
        TemporaryDirectory(prefix="ray-") as short,
        Processes(work) as processes,
    ):
        stack.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", before)
        port, unused = free_ports(2)  # Ray's own second port would be the same for every run
        command = ["ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
        command += [f"--port={port}", f"--ray-client-server-port={unused}"]
        command += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={short}"]
        processes.start("ray", command, environment(LOCAL, work / "home"))
        log = processes.log("ray")
        processes.wait(lambda: "Ray runtime started" in log.read_text(), "Ray", START)
        yield f"127.0.0.1:{port}"


@final
class Cluster(Nodes):
    """``Nodes`` that Ray serves; this machine must run a node of Ray's cluster.

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
        with warnings.catch_warnings(action="ignore"):  # advice for programmers
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
