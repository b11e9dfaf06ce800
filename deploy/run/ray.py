"""The Ray runtime: one SuperLink simulates the nodes of all clients.

``flwr.simulation.run_simulation`` takes no run config, and its actors import from the caller's
working directory. This module therefore starts a private ``flower-superlink --simulation`` and
submits the run to it, with the same bundle as the gRPC runtime. The SuperLink starts in an empty
directory, because Ray's actors import from that directory before the bundle.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from client_app.node import IN_STATE, LEDGER
from common.settings.section import Value
from deploy.flower.bundle import check_app
from deploy.flower.control import RunStatus, start_superlink
from deploy.flower.processes import Processes
from server_app.stopped import Stopped

RAY = {
    # Ray runs Python between fork and exec. There, gRPC's fork handlers end the child with a
    # segmentation fault in one of three starts (grpcio 1.85, Ray 2.55).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray reads this only on other systems; here it binds all of Ray's sockets to 127.0.0.1
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # hide no GPU: the run config names the device
}
#: Ray's messages for a process that started too late or not at all, which happens under load
LATE_START = re.compile("timed out during startup|Timed out waiting for file")
ATTEMPTS = 3  #: the first, and one more after each late start


def run_simulation(
    app: Path,
    clients: int,
    run_config: Mapping[str, Value],
    work: Path,
    env: Mapping[str, str] | None = None,
    on_log: Callable[[str], None] = lambda line: None,
    watch: Callable[[], Callable[[], bool]] = lambda: lambda: False,
) -> RunStatus:
    """Run the app with ``clients`` simulated nodes and return the final status of the run.

    ``work``: folder for ``logs/superlink.log``, ``logs/simulation.log`` and Flower's own files.
    ``env``: added to the environment of the ServerApp and the actors. ``on_log``: called with every
    line that the run prints. ``watch``: called before each attempt to start Ray; returns the
    ``finished`` of ``Control.follow``.

    Raises ``ValueError`` if an argument is not allowed, ``RuntimeError`` if Flower refuses the run
    or a process ends by itself, ``Stopped`` if ``finished`` detects that the ServerApp is gone for
    another reason than a late start of Ray.
    """
    check_app(app, run_config)
    settings: dict[str, Value] = {"client-resources-num-cpus": 1, "num-supernodes": clients}
    work = work.expanduser().resolve()
    for attempt in range(1, ATTEMPTS + 1):
        lines: list[str] = []  # Flower discards a simulation's output except for this stream

        def collect(line: str, lines: list[str] = lines) -> None:
            lines.append(line)
            on_log(line)

        # Ray's sockets need a short path; the end of the block removes the files of Ray
        with tempfile.TemporaryDirectory(prefix="ray-") as short, Processes(work) as processes:
            ray_env = {**RAY, LEDGER: IN_STATE, "RAY_TMPDIR": short, **(env or {})}
            control, _ = start_superlink(processes, work, ray_env, simulation=True)
            try:
                with control:
                    run_id = control.submit(app, run_config, settings)
                    status = control.follow(run_id, collect, watch())
                gone = None
            except Stopped as error:
                gone = error
            finally:
                log = "\n".join(lines)
                processes.log("simulation").write_text(log, encoding="utf-8")
                if late := LATE_START.search(log):
                    _keep_logs(Path(short), processes.logs / f"ray-{attempt}")
        if gone is None and status.completed:
            return status
        if attempt == ATTEMPTS or not late:
            break
    if gone is not None:
        raise Stopped(_reason(log) or str(gone)) from gone
    return replace(status, details=_reason(log) or status.details)


def _keep_logs(ray: Path, kept: Path) -> None:
    """Copy the logs of Ray's processes to ``kept`` before the folder ``ray`` is removed."""
    for logs in (ray / "ray").glob("session_*_*/logs"):
        shutil.copytree(logs, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def _reason(log: str) -> str:
    """Return the reason of a failure from the run's output; its status names only a thread."""
    if errors := re.findall(r"ServerApp thread raised an exception: (.*)", log):
        return str(errors[-1])
    late = [line for line in log.splitlines() if LATE_START.search(line)]
    return f"Ray did not start in {ATTEMPTS} attempts: {late[-1]}" if late else ""
