"""A SuperLink on this machine: a process among others, reachable on 127.0.0.1 only."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.flower.control import Control
from deploy.flower.processes import Processes, environment, free_ports
from deploy.machines.certificates import Certificates


def start(
    processes: Processes,
    work: Path,
    env: Mapping[str, str],
    *,
    simulation: bool,
    certificates: Certificates | None = None,
) -> tuple[Control, str]:
    """Start a SuperLink; its Control API, which answers, and the address where SuperNodes connect.

    ``work``: absolute, as ``Control`` takes it; ``env``: added to the environment of the SuperLink
    and therefore of the ServerApp; ``simulation``: run the clients in Ray, inside the ServerApp's
    process tree; ``certificates``: with them, TLS, and only registered SuperNodes may connect.

    Raises ``RuntimeError``: it ended or did not answer in time; with the end of its log.
    """
    at, fleet = (f"127.0.0.1:{port}" for port in free_ports(2))
    full = environment(env, work / "home" / "superlink")
    Path(full["FLWR_HOME"]).mkdir(parents=True, exist_ok=True)
    command = superlink_command(at, fleet, simulation, certificates)
    processes.start("superlink", command, full, last=True)
    control = Control(at, certificates and certificates.ca, work, full, processes.check)
    processes.wait(lambda: not control.silent(), "the SuperLink to answer", 60.0)
    return control, fleet


def superlink_command(
    control: str, fleet: str, simulation: bool, certificates: Certificates | None = None
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
