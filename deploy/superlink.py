"""A SuperLink on this machine: start it, submit runs to it, follow them to their real end.

Runs are submitted with Flower's own command line (``flwr run``), which builds the bundle. All other
questions (who is online, how a run stands, what its ServerApp prints) go to the Control API by
gRPC: one answer takes milliseconds, one start of the command line takes about two seconds of
processor time. ``flwr run --stream`` would not do, since it exits with 0 when the run has failed.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import grpc
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.proto.control_pb2_grpc import ControlStub

from deploy.flower_cli import Value, check_app, config_arguments, run_config_toml, stage_app
from deploy.processes import Processes, environment, executable, free_ports, plain, tail

CONNECTION = "here"  #: the name of the SuperLink in the private config.toml
POLL = 0.1  #: seconds between two looks at processes that start or at a run that ends


@final
@dataclass(frozen=True)
class RunStatus:
    """How a run stands, as the SuperLink says it (``flwr list``)."""

    run_id: int
    status: str  #: pending, starting, running, finished:completed, finished:failed, ...:stopped
    details: str  #: why it failed, in one line; else empty
    bytes_sent: int  #: by the SuperLink to the SuperNodes; 0 in a simulation
    bytes_received: int  #: by the SuperLink from the SuperNodes; 0 in a simulation

    @property
    def finished(self) -> bool:
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


@final
class SuperLink:
    """A SuperLink among ``processes``, reachable on 127.0.0.1 only and without TLS."""

    def __init__(
        self, processes: Processes, work: Path, env: Mapping[str, str], *, simulation: bool
    ) -> None:
        """Start it and wait until it answers.

        Args:
            processes: an entered context, which ends the SuperLink too.
            work: absolute; below it come ``home/`` (what Flower writes), ``run.toml`` and ``app/``.
            env: added to the environment of the SuperLink and therefore of the ServerApp.
            simulation: run the clients in Ray, inside the ServerApp's process tree.

        Raises:
            RuntimeError: it ended or did not answer in time; with the end of its log.
        """
        control, fleet = free_ports(2)
        self._processes = processes
        self._run_toml = work / "run.toml"
        self._env = environment(env, work / "home" / "superlink")
        self.fleet = f"127.0.0.1:{fleet}"  #: where SuperNodes connect
        home = Path(self._env["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
        )
        command = superlink_command(control, fleet, simulation)
        processes.start("superlink", command, self._env, last=True)
        self._channel = grpc.insecure_channel(  # type: ignore[no-untyped-call]
            f"127.0.0.1:{control}", options=[("grpc.enable_http_proxy", 0)]
        )
        self._control = ControlStub(self._channel)
        self.wait(self._answers, "the SuperLink to answer", 60.0)

    def close(self) -> None:
        """Close the connection; the process belongs to ``processes``."""
        self._channel.close()

    def wait(self, ready: Callable[[], bool], what: str, patience: float) -> None:
        """Wait for ``ready()``, watching that no process ends meanwhile.

        Raises:
            RuntimeError: a process ended, or ``patience`` seconds passed.
        """
        deadline = time.monotonic() + patience
        while not ready():
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
        nodes = self._control.ListNodes(ListNodesRequest(), timeout=2.0).nodes_info
        return sum(node.status == "online" for node in nodes)

    def submit(
        self, app: Path, run_config: Mapping[str, Value], federation: Mapping[str, Value]
    ) -> int:
        """Bundle ``app``, start a run of it with these overrides, return the run's id.

        Raises:
            ValueError: ``app`` is no Flower app, or an override that it or Flower cannot take.
            RuntimeError: Flower refused the app or the run; with Flower's own message.
        """
        folder = stage_app(check_app(app, run_config), self._run_toml.with_name("app"))
        self._run_toml.write_text(run_config_toml(run_config), encoding="utf-8")
        command = [executable("flwr"), "run", str(folder), CONNECTION, "--format", "json"]
        if run_config:
            command += ["--run-config", str(self._run_toml)]
        if federation:
            command += ["--federation-config", config_arguments(federation)]
        done = subprocess.run(
            command,
            cwd=self._processes.empty,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._processes.check()
        return run_id_from(done.stdout, done.stderr)

    def status(self, run_id: int) -> RunStatus:
        """How the run stands now."""
        answer = self._control.ListRuns(ListRunsRequest(run_id=run_id), timeout=10.0)
        run = answer.run_dict[run_id]
        parts = [run.status.status, run.status.sub_status]
        return RunStatus(
            run_id=run_id,
            status=":".join(part for part in parts if part),
            details=run.status.details,
            bytes_sent=run.bytes_sent,
            bytes_received=run.bytes_recv,
        )

    def follow(
        self,
        run_id: int,
        on_log: Callable[[str], None] | None = None,
        finished: Callable[[], bool] | None = None,
        poll: float = 0.2,
    ) -> RunStatus:
        """Wait until the run has ended and return how.

        Args:
            run_id: from ``submit``.
            on_log: gets every line that the ServerApp prints, at most a second late.
            finished: called every ``poll`` seconds; once it is true, the run is known to be at its
                end and its status is asked for every 0.1 s instead of awaited.
            poll: seconds between two looks at the processes.

        Raises:
            RuntimeError: a process of the federation ended before the run did.
        """
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(target=self._stream, args=(run_id, lines.put), daemon=True)
        reader.start()
        ended = False
        while not ended:
            try:
                line = lines.get(timeout=poll)
                ended = line is None
                if line is not None and on_log is not None:
                    on_log(line)
            except queue.Empty:
                self._processes.check()
                ended = finished is not None and finished()
        self.wait(lambda: self.status(run_id).finished, f"run {run_id} to end", 60.0)
        if on_log is not None:
            reader.join(timeout=2.0)
            while not lines.empty():
                if (line := lines.get()) is not None:
                    on_log(line)
        return self.status(run_id)

    def stop(self, run_id: int) -> None:
        """Stop the run; the federation stays up."""
        self._control.StopRun(StopRunRequest(run_id=run_id), timeout=10.0)

    def _answers(self) -> bool:
        try:
            self.online()
        except grpc.RpcError:
            return False
        return True

    def _stream(self, run_id: int, put: Callable[[str | None], None]) -> None:
        """Put the ServerApp's output line by line, then None when the stream ends or breaks."""
        try:
            unfinished = ""
            for chunk in self._control.StreamLogs(StreamLogsRequest(run_id=run_id)):
                *complete, unfinished = (unfinished + chunk.log_output).split("\n")
                for line in complete:
                    put(plain(line))
            if unfinished:
                put(plain(unfinished))
        except (grpc.RpcError, ValueError):
            pass  # the SuperLink went away or the channel was closed: ``follow`` finds out why
        finally:
            put(None)


def superlink_command(control: int, fleet: int, simulation: bool) -> Sequence[str]:
    """The command line of a SuperLink whose APIs all listen on 127.0.0.1."""
    common = [
        "flower-superlink",
        "--insecure",
        "--control-api-address",
        f"127.0.0.1:{control}",
        "--serverappio-api-address",
        "127.0.0.1:0",  # any free port: only the SuperLink's own children need to know it
    ]
    if simulation:
        return [*common, "--simulation"]
    return [*common, "--fleet-api-address", f"127.0.0.1:{fleet}"]


def run_id_from(stdout: str, stderr: str) -> int:
    """The run id in what ``flwr run --format json`` printed.

    Raises:
        RuntimeError: it reports a failure or nothing that can be read; with Flower's message.
    """
    try:
        answer = json.loads(stdout)
    except json.JSONDecodeError:
        message = (stderr or stdout).strip() or "it printed nothing"
        raise RuntimeError(f"flwr run gave no run: {message}") from None
    if not answer.get("success"):
        raise RuntimeError(f"flwr run gave no run: {answer.get('error-message', stdout)}")
    return int(answer["run-id"])
