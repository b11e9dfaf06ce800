"""A SuperLink on this machine, as a process among others, and the connection to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

import grpc

from deploy.flower.arguments import Value
from deploy.flower.control import Control, RunStatus
from deploy.flower.processes import Processes, environment, free_ports, tail
from deploy.machines.certificates import Certificates

POLL = 0.1  #: seconds between two looks at processes that start


@final
class SuperLink:
    """A SuperLink among ``processes``, reachable on 127.0.0.1 only."""

    def __init__(
        self,
        processes: Processes,
        work: Path,
        env: Mapping[str, str],
        *,
        simulation: bool,
        certificates: Certificates | None = None,
        isolation: str = "subprocess",
        fleet: str = "",
    ) -> None:
        """Start it and wait until it answers.

        Args:
            processes: an entered context, which ends the SuperLink too.
            work: absolute; below it come ``home/`` (what Flower writes), ``run.toml`` and ``app/``.
            env: added to the environment of the SuperLink and therefore of the ServerApp.
            simulation: run the clients in Ray, inside the ServerApp's process tree.
            certificates: with them, TLS, and only registered SuperNodes may connect.
            isolation: ``process`` keeps what it knows in a database and leaves ServerApps to a
                superexec beside it, so that a run survives a restart of the SuperLink.
            fleet: ``host:port`` where SuperNodes connect; default: 127.0.0.1 and a free port.

        Raises:
            RuntimeError: it ended or did not answer in time; with the end of its log.
        """
        control, free, appio = free_ports(3)
        self._processes = processes
        self.fleet = fleet or f"127.0.0.1:{free}"  #: where SuperNodes connect
        self.control_address = f"127.0.0.1:{control}"
        full = environment(env, work / "home" / "superlink")
        Path(full["FLWR_HOME"]).mkdir(parents=True, exist_ok=True)
        database = work / "superlink.db" if isolation == "process" else None
        self.command = superlink_command(
            self.control_address,
            self.fleet,
            simulation,
            certificates,
            appio=f"127.0.0.1:{appio}" if database else "",
            database=database,
        )
        processes.start("superlink", self.command, full, last=True)
        ca = certificates.ca if certificates else None
        self.control = Control(self.control_address, ca, work, full)
        self.wait(lambda: not self.control.silent(), "the SuperLink to answer", 60.0)
        if database:
            processes.start("superexec", superexec_command(f"127.0.0.1:{appio}"), full)

    def close(self) -> None:
        """Close the connection; the process belongs to ``processes``."""
        self.control.close()

    def wait(self, ready: Callable[[], bool], what: str, patience: float) -> None:
        """Wait for ``ready()``, watching that no process ends meanwhile.

        A ``grpc.RpcError`` of it, such as that of a SuperLink which is slow to answer, is a "not
        yet".

        Raises:
            RuntimeError: a process ended, or ``patience`` seconds passed.
        """
        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(grpc.RpcError):
                if ready():
                    return
            self._processes.check()
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"waited {patience:.0f} s in vain for {what}; the logs are in "
                    f"{self._processes.logs}, the SuperLink's ends:\n"
                    f"{tail(self._processes.log('superlink'))}"
                )
            time.sleep(POLL)

    def online(self) -> int:
        """How many SuperNodes are registered and online."""
        return self.control.online()

    def submit(
        self, app: Path, run_config: Mapping[str, Value], federation: Mapping[str, Value]
    ) -> int:
        """As ``Control.submit``; raises ``RuntimeError`` too if a process has ended by itself."""
        run_id = self.control.submit(app, run_config, federation)
        self._processes.check()
        return run_id

    def status(self, run_id: int) -> RunStatus:
        """How the run stands now."""
        return self.control.status(run_id)

    def follow(
        self,
        run_id: int,
        on_log: Callable[[str], None] | None = None,
        finished: Callable[[], bool] | None = None,
        poll: float = 0.2,
    ) -> RunStatus:
        """As ``Control.follow``; raises ``RuntimeError`` if a process ended before the run did."""
        return self.control.follow(run_id, on_log, finished, poll, self._processes.check)

    def stop(self, run_id: int) -> None:
        """Stop the run; the federation stays up."""
        self.control.stop(run_id)


def superlink_command(
    control: str,
    fleet: str,
    simulation: bool,
    certificates: Certificates | None = None,
    *,
    appio: str = "",
    database: Path | None = None,
) -> Sequence[str]:
    """The command line of a SuperLink.

    The Control API has no authentication and the ServerAppIo API (``appio``) no TLS: both belong on
    127.0.0.1. With a ``database`` ServerApps are left to a superexec.
    """
    tls = ["--insecure"]
    if certificates is not None:
        tls = ["--ssl-ca-certfile", str(certificates.ca)]
        tls += ["--ssl-certfile", str(certificates.server)]
        tls += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
    common = ["flower-superlink", *tls, "--control-api-address", control]
    # any free port will do where only the SuperLink's own children need to know it
    common += ["--serverappio-api-address", appio or "127.0.0.1:0"]
    if simulation:
        return [*common, "--simulation"]
    kept = ["--isolation", "process", "--database", str(database)] if database else []
    return [*common, "--fleet-api-address", fleet, *kept]


def superexec_command(appio: str) -> Sequence[str]:
    """The command line of the program that starts ServerApps for a SuperLink on this machine."""
    return [
        "flower-superexec",
        "--insecure",
        "--plugin-type",
        "serverapp",
        "--appio-api-address",
        appio,
    ]
