"""A SuperLink on this machine, as a process among others, and the connection to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

import grpc

from deploy.flower.control import Control
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
    ) -> None:
        """Start it and wait until it answers.

        Args:
            processes: an entered context, which ends the SuperLink too.
            work: absolute; below it come ``home/`` (what Flower writes), ``run.toml`` and ``app/``.
            env: added to the environment of the SuperLink and therefore of the ServerApp.
            simulation: run the clients in Ray, inside the ServerApp's process tree.
            certificates: with them, TLS, and only registered SuperNodes may connect.

        Raises:
            RuntimeError: it ended or did not answer in time; with the end of its log.
        """
        control, self.fleet = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._processes = processes
        full = environment(env, work / "home" / "superlink")
        Path(full["FLWR_HOME"]).mkdir(parents=True, exist_ok=True)
        command = superlink_command(control, self.fleet, simulation, certificates)
        processes.start("superlink", command, full, last=True)
        ca = certificates.ca if certificates else None
        self.control = Control(control, ca, work, full, processes.check)
        self.wait(lambda: not self.control.silent(), "the SuperLink to answer", 60.0)

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


def superlink_command(
    control: str,
    fleet: str,
    simulation: bool,
    certificates: Certificates | None = None,
) -> Sequence[str]:
    """The command line of a SuperLink.

    The Control API has no authentication and the ServerAppIo API no TLS: both belong on 127.0.0.1.
    """
    tls = ["--insecure"]
    if certificates is not None:
        tls = ["--ssl-ca-certfile", str(certificates.ca)]
        tls += ["--ssl-certfile", str(certificates.server)]
        tls += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
    common = ["flower-superlink", *tls, "--control-api-address", control]
    # any free port will do where only the SuperLink's own children need to know it
    common += ["--serverappio-api-address", "127.0.0.1:0"]
    return [*common, *(["--simulation"] if simulation else ["--fleet-api-address", fleet])]
