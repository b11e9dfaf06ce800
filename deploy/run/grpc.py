"""The gRPC runtime: one SuperLink and one SuperNode per client, as processes on this machine.

Programs, messages and isolation are those of real machines, with TLS and authentication if there
are certificates. All addresses are on 127.0.0.1. Each process has its own FLWR_HOME, because Flower
unpacks the app there without a lock: two nodes that share it can import an incomplete copy.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from client_app.node import IN_STATE
from common.settings.section import Value
from deploy.flower import supernode, warm
from deploy.flower.bundle import check_app, config_arguments
from deploy.flower.certificates import Certificates
from deploy.flower.control import Control, start_superlink
from deploy.flower.processes import Processes, environment
from server_app.messaging.sealed import TRUST


@final
@dataclass(frozen=True)
class Federation:
    """A running SuperLink and its connected SuperNodes, which serve one run after another."""

    app: Path
    processes: Processes  #: ``superlink``, ``supernode-K`` and, with a warm start, ``warm``
    control: Control  #: client of the SuperLink's Control API
    fleet: str  #: address to which SuperNodes connect

    def submit(self, run_config: Mapping[str, Value]) -> int:
        """Start a run of the app with these overrides and return its id; see ``Control``."""
        return self.control.submit(self.app, run_config, {})


@contextmanager
def start_federation(
    app: Path,
    clients: int,
    work: Path,
    env: Mapping[str, str] | None = None,
    warm_start: bool | None = False,
    certificates: Certificates | None = None,
) -> Iterator[Federation]:
    """Start a SuperLink and ``clients`` SuperNodes, and yield them when all are connected.

    All processes end when the block ends or the calling process dies. After all nodes have
    connected, the server decides what follows from the loss of a node.

    ``work``: folder for ``logs/*.log`` and Flower's own files. ``env``: added to the environment of
    all processes, ServerApp and ClientApp included. ``warm_start``: see ``deploy/flower/warm.py``;
    None: if the platform supports it. ``certificates``: absolute paths, with a key for each client.
    With them connections use TLS, nodes authenticate, and messages are sealed; None: plaintext.

    Raises ``ValueError`` before anything starts if an argument is not allowed, ``RuntimeError`` if
    a program is missing, ends by itself or does not start in time.
    """
    if warm_start and sys.platform != "linux":
        raise ValueError(f"warm_start on {sys.platform}: forking is safe enough only on Linux")
    warm_start = warm.possible() if warm_start is None else warm_start
    configs = [node_config(k, clients, {"ledger": IN_STATE}, certificates) for k in range(clients)]
    app, work, variables = check_app(app, {}), work.expanduser().resolve(), dict(env or {})
    if certificates is not None:
        variables[TRUST] = str(certificates.folder)
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(work))
        if warm_start:
            folder = stack.enter_context(warm.stand_ins())
            full = environment(variables, work / "home" / "warm")
            variables |= warm.start(processes, folder, full)
        control, fleet = start_superlink(
            processes, work, variables, simulation=False, certificates=certificates
        )
        stack.enter_context(control)
        if warm_start:
            processes.wait(lambda: warm.ready(processes, folder), "the warm process", 120.0)
        for k, config in enumerate(configs):
            if certificates is not None:
                control.register(certificates.public(k))
            home = work / "home" / f"supernode-{k}"
            command = supernode_command(fleet, config, certificates, k)
            processes.start(f"supernode-{k}", command, environment(variables, home))
        many = f"{clients} SuperNodes"
        processes.wait(lambda: control.online() >= clients, many, 60.0 + 5.0 * clients)
        for k in range(clients):
            processes.spare(f"supernode-{k}")
        yield Federation(app, processes, control, fleet)


def node_config(
    k: int, clients: int, more: Mapping[str, Value], certificates: Certificates | None = None
) -> str:
    """Return the ``--node-config`` argument of client k of ``clients``.

    ``more``: further settings. With ``certificates`` the argument includes the client's key, and
    ``roster.pub`` if there is one.

    Raises ``ValueError`` if ``more`` sets a reserved key, or a value that Flower cannot transmit.
    """
    identity: dict[str, Value] = {"partition-id": k, "num-partitions": clients}
    if certificates is not None:
        identity |= {"key": str(certificates.key(k)), "ca": str(certificates.ca)}
        if certificates.roster.is_file():
            more = {"roster": str(certificates.roster), **more}
    if fixed := sorted(identity.keys() & more.keys()):
        raise ValueError(f"node config of client {k} sets {fixed[0]}, which is set for it")
    return config_arguments({**identity, **more})


def supernode_command(
    fleet: str, node_config: str, certificates: Certificates | None = None, k: int = 0
) -> Sequence[str]:
    """Return the command line of a SuperNode for one client; with certificates, of client k."""
    trust = ["--insecure"]
    if certificates is not None:
        trust = ["--root-certificates", str(certificates.ca)]
        trust += ["--auth-supernode-private-key", str(certificates.key(k))]
    # port 0, any free port: only the SuperNode's child processes need it
    inner = ["--clientappio-api-address", "127.0.0.1:0", "--node-config", node_config]
    return supernode.command([*trust, "--superlink", fleet, *inner])
