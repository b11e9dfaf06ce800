"""The gRPC runtime: one SuperLink and one SuperNode per client, as processes on this machine.

The same programs, messages and isolation as between real machines, with TLS and authentication if
there are certificates; every address is on 127.0.0.1. Each process has its own FLWR_HOME, as it
would elsewhere, because Flower unpacks the app there without a lock and two nodes that share it can
import a half-written copy.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self, final

from deploy.flower import warm
from deploy.flower.arguments import Value, check_app, config_arguments
from deploy.flower.control import Control
from deploy.flower.processes import Processes, environment
from deploy.flower.superlink import SuperLink
from deploy.machines.certificates import Certificates

NOTHING: Mapping[str, str] = MappingProxyType({})


@final
class Federation:
    """A context in which a SuperLink and ``clients`` SuperNodes run and are connected.

    Leaving it, by whatever way, ends every process; so does the death of the process that entered
    it. Several runs may be submitted, one after the other.
    """

    def __init__(
        self,
        *,
        app: Path,
        clients: int,
        work: Path,
        node_configs: Sequence[Mapping[str, Value]] | None = None,
        env: Mapping[str, str] = NOTHING,
        patience: float = 60.0,
        warm_start: bool = False,
        spare_nodes: bool = False,
        certificates: Path | None = None,
        node_envs: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        """Check the arguments; nothing starts before the context is entered.

        Args:
            app: the folder with the app's ``pyproject.toml``.
            clients: the number N of SuperNodes; node k gets ``partition-id=k num-partitions=N``.
            work: gets ``logs/*.log`` and Flower's own files; made if it does not exist.
            node_configs: what node k's configuration holds beyond that, such as ``model``; N of
                them or None.
            env: added to the environment of all processes, so also of ServerApp and ClientApp.
            patience: seconds that the SuperNodes together may take to come online, plus 5 per node.
            warm_start: fork the processes of a round from one that has torch imported; see
                ``warm.py``.
            spare_nodes: once all nodes have been online, let a run go on when one of them dies;
                otherwise that is an error.
            certificates: the folder that ``fedmosaic certs`` made: TLS, and every node shows its
                key. None: plaintext.
            node_envs: added to the environment of node k beyond ``env``; N of them or None.

        Raises:
            ValueError: one of the arguments cannot work.
        """
        if clients < 1:
            raise ValueError(f"clients={clients}: at least 1 is needed")
        if warm_start and sys.platform != "linux":
            raise ValueError(f"warm_start on {sys.platform}: forking is safe enough on Linux only")
        extra = node_configs if node_configs is not None else [{}] * clients
        if len(extra) != clients:
            raise ValueError(f"{len(extra)} node configs for {clients} clients: one each is needed")
        envs = node_envs if node_envs is not None else [{}] * clients
        if len(envs) != clients:
            raise ValueError(f"{len(envs)} node_envs for {clients} clients: one each is needed")
        self._node_envs = envs
        self._certificates = None if certificates is None else _complete(certificates, clients)
        self._node_configs = [node_config(k, clients, more) for k, more in enumerate(extra)]
        self._app = check_app(app, {})
        self._work = work.expanduser().resolve()
        self._env = dict(env)
        self._patience = patience + 5.0 * clients
        self._warm = warm_start
        self._spare_nodes = spare_nodes
        self._stack = contextlib.ExitStack()
        self._superlink: SuperLink | None = None
        self._processes: Processes | None = None

    def __enter__(self) -> Self:
        """Start everything and wait until all nodes are online.

        Raises:
            RuntimeError: a program is missing, ended by itself or did not come up in time.
        """
        with contextlib.ExitStack() as stack:
            processes = stack.enter_context(Processes(self._work))
            env = self._env
            if self._warm:
                folder = stack.enter_context(warm.stand_ins())
                env = environment(env, self._work / "home" / "warm")
                warm.start(processes, folder, env)
                env = {**self._env, "PATH": os.pathsep.join([str(folder), env["PATH"]])}
            superlink = SuperLink(
                processes,
                self._work,
                env,
                simulation=False,
                certificates=self._certificates,
            )
            stack.callback(superlink.close)
            if self._warm:
                superlink.wait(lambda: warm.ready(processes, folder), "the warm process", 120.0)
            for k, text in enumerate(self._node_configs):
                if self._certificates is not None:
                    superlink.control.register(self._certificates.public(k))
                home = self._work / "home" / f"supernode-{k}"
                command = supernode_command(superlink.fleet, text, self._certificates, k)
                own = environment({**env, **self._node_envs[k]}, home)
                processes.start(f"supernode-{k}", command, own)
            clients, online = len(self._node_configs), superlink.control.online
            superlink.wait(lambda: online() >= clients, f"{clients} SuperNodes", self._patience)
            if self._spare_nodes:
                for k in range(clients):
                    processes.spare(f"supernode-{k}")
            self._superlink, self._processes = superlink, processes
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def processes(self) -> Processes:
        """``superlink``, ``supernode-K`` and, with a warm start, ``warm``."""
        assert self._processes is not None, "the federation has not been entered"
        return self._processes

    @property
    def superlink(self) -> SuperLink:
        """The SuperLink, to ask it what a run does not tell."""
        assert self._superlink is not None, "the federation has not been entered"
        return self._superlink

    @property
    def control(self) -> Control:
        """The SuperLink's Control API: follow a run, stop it, ask who is online."""
        return self.superlink.control

    def submit(self, run_config: Mapping[str, Value]) -> int:
        """Start a run of the app with these overrides and return its id; see ``Control``."""
        return self.control.submit(self._app, run_config, {})

    def close(self) -> None:
        """End every process; may be called again."""
        self._superlink = None
        self._stack.close()


def node_config(k: int, clients: int, more: Mapping[str, Value]) -> str:
    """The ``--node-config`` argument of client k of ``clients``.

    Raises:
        ValueError: ``more`` names the partition itself or has a value that Flower cannot carry.
    """
    identity: dict[str, Value] = {"partition-id": k, "num-partitions": clients}
    if taken := sorted(identity.keys() & more.keys()):
        raise ValueError(f"node config of client {k} sets {taken[0]}, which is set for it")
    return config_arguments({**identity, **more})


def supernode_command(
    fleet: str, node_config: str, certificates: Certificates | None = None, k: int = 0
) -> Sequence[str]:
    """The command line of a SuperNode that serves one client; with certificates, as client k."""
    trust = ["--insecure"]
    if certificates is not None:
        trust = ["--root-certificates", str(certificates.ca)]
        trust += ["--auth-supernode-private-key", str(certificates.key(k))]
    return [
        "flower-supernode",
        *trust,
        "--superlink",
        fleet,
        "--clientappio-api-address",
        "127.0.0.1:0",  # any free port: only the SuperNode's own children need to know it
        "--node-config",
        node_config,
    ]


def _complete(folder: Path, clients: int) -> Certificates:
    files = Certificates(folder.expanduser().resolve())
    needed = [files.ca, files.server, files.server_key]
    needed += [path for k in range(clients) for path in (files.key(k), files.public(k))]
    for path in needed:
        if not path.exists():
            raise ValueError(
                f"{path} is missing; make it with: fedmosaic certs {folder} --clients {clients}"
            )
    return files
