"""Start a SuperLink on this machine, and call its Control API from registration to a run's end.

Runs are submitted with ``flwr run``, which builds the bundle. All other requests use the Control
API over gRPC, which takes milliseconds. A start of Flower's command line takes two seconds of CPU
time. ``flwr run --stream`` is not used, because it exits with 0 after a failed run.
"""

from __future__ import annotations

import json
import math
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import grpc
from flwr.proto import control_pb2 as proto
from flwr.proto.control_pb2_grpc import ControlStub

from common.errors import first_line
from common.flower.rpc import details
from common.settings.section import Value
from deploy.flower.bundle import check_app, config_arguments, run_config_toml, stage_app
from deploy.flower.certificates import Certificates, read_public_key
from deploy.flower.owner.admission import OTHER_API, cause, channel, check_tls
from deploy.flower.processes import Processes, environment, executable, free_ports, plain

CONNECTION = "here"  #: name of the SuperLink in the private config.toml
ANSWER = 10.0  #: timeout of one request in seconds
POLL = 0.1  #: seconds between two status requests while a run ends
PAUSE = 0.2  #: seconds without output between two checks of the processes
SILENCE = 2.0  #: seconds without output before a status request to the SuperLink
PENDING = "pending"  #: Flower's status of a run whose ServerApp has not started
LONG = 30.0  #: seconds for which a run may be pending
STUCK = (
    "run {run_id} has been pending for {seconds:.0f} s, so the SuperLink does not start its "
    "ServerApp: see the SuperLink's log. If http_proxy is set where it was started, its own "
    "processes do not reach it: start it with no_proxy=127.0.0.1,localhost"
)
FINISHED, UNREGISTERED = "finished", "unregistered"  #: Flower's final status of a run and of a node
FLOWERS = "ServerApp failed with exception: "  #: Flower's words before the line of a ServerApp
IN_USE = "Public key already in use"  #: Flower's error for a key that is or was registered


@final
class Unregistered(RuntimeError):
    """Error for a key that was unregistered; Flower never registers such a key again."""


@final
@dataclass(frozen=True)
class RunStatus:
    """Status of a run, as reported by the SuperLink (``flwr list``)."""

    run_id: int
    status: str  #: pending, starting, running, finished:completed, finished:failed, ...:stopped
    details: str  #: reason of a failure in one line; else empty
    bytes_sent: int  #: from the SuperLink to the SuperNodes; 0 in a simulation
    bytes_received: int  #: from the SuperNodes to the SuperLink; 0 in a simulation

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"

    @property
    def failure(self) -> str:
        """Reason why the run did not complete, in one line; empty if it did."""
        line = first_line(self.details.removeprefix(FLOWERS))
        return "" if self.completed else line or f"the run ended as {self.status}"


@final
class Control:
    """Client of the Control API at ``address``, and a context manager of the connection."""

    def __init__(
        self,
        address: str,
        ca: Path | None,
        work: Path,
        env: Mapping[str, str] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the connection and Flower's configuration, without a request.

        ``ca``: certificate of the authority that signed the SuperLink's; None without TLS;
        ``work``: absolute folder for ``home/`` (Flower's files), ``run.toml`` and ``app/``;
        ``env``: environment of ``flwr run``, by default with a FLWR_HOME below ``work``; ``check``:
        raises an error if a process has ended by itself.
        """
        self.address = address
        self._tls, self._work, self._check = ca is not None, work, check
        self._env = dict(env or environment({}, work / "home" / "control"))
        home = Path(self._env["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true" if ca is None else f"root-certificates = {json.dumps(str(ca))}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f"[superlink.{CONNECTION}]\naddress = {json.dumps(address)}\n{trust}\n"
        )
        self._channel = channel(address, ca, [("grpc.enable_http_proxy", 0)])
        self._control = ControlStub(self._channel)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def await_answer(self, patience: float) -> None:
        """Wait until the SuperLink responds.

        Raises ``RuntimeError`` with the cause after ``patience`` seconds without a response, at
        once if only one side uses TLS, or for a certificate that is not accepted.
        """
        deadline = time.monotonic() + patience
        while reason := self.silent():
            check_tls(self.address, self._tls)
            line = cause(self.address, reason, direct=True)
            if OTHER_API in reason:
                raise RuntimeError(
                    f"{self.address} is not a SuperLink's Control API (port 9093 by "
                    f"default; 9092 is the clients'): {reason}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"within {patience:g} s no SuperLink answers at {line}")
            time.sleep(POLL)

    def silent(self) -> str:
        """Return why the SuperLink does not respond now, in one line; empty if it does."""
        try:
            self.online()
        except grpc.RpcError as error:
            return details(error)
        return ""

    def online(self) -> int:
        """Return the number of SuperNodes that are registered and online."""
        return sum(node.status == "online" for node in self._nodes(timeout=2.0))

    def _nodes(self, timeout: float = ANSWER) -> Any:
        return self._control.ListNodes(proto.ListNodesRequest(), timeout=timeout).nodes_info

    def register(self, public_key: Path) -> bool:
        """Register the SuperNode with this key; return False if it was registered already.

        Raises ``ValueError`` if the file cannot be read or is not a public key on a NIST curve,
        ``Unregistered`` if the key was unregistered before, and ``RuntimeError`` with the
        SuperLink's reason if it refuses the key.
        """
        key = read_public_key(public_key)
        try:
            request = proto.RegisterNodeRequest(public_key=key)
            self._control.RegisterNode(request, timeout=ANSWER)
            return True
        except grpc.RpcError as error:
            if IN_USE not in details(error):
                raise RuntimeError(f"{public_key} was not registered: {details(error)}") from None
        if self._registered(key):
            return False
        raise Unregistered(
            f"{public_key} was unregistered and cannot come back: delete it and "
            f"{public_key.stem}.key, make a new key with fedmosaic certs and register that"
        )

    def unregister(self, public_key: Path) -> bool:
        """Unregister the SuperNode with this key; return False if it was not registered.

        Raises ``ValueError`` if the file cannot be read or is not a public key on a NIST curve.
        """
        registered = self._registered(read_public_key(public_key))
        for node_id in registered:
            request = proto.UnregisterNodeRequest(node_id=node_id)
            self._control.UnregisterNode(request, timeout=ANSWER)
        return bool(registered)

    def _registered(self, key: bytes) -> list[int]:
        """Return the ids of the nodes that are registered with this key: one or none."""
        nodes = (node for node in self._nodes() if node.public_key == key)
        return [node.node_id for node in nodes if node.status != UNREGISTERED]

    def submit(
        self, app: Path, run_config: Mapping[str, Value], federation: Mapping[str, Value]
    ) -> int:
        """Bundle ``app``, start a run of it with these overrides, and return the run's id.

        Raises ``ValueError`` if ``app`` is not a Flower app or if an override is not allowed,
        ``RuntimeError`` with Flower's message if Flower refuses the app or the run, and the error
        of ``check``.
        """
        overrides, empty = self._work / "run.toml", self._work / "empty"
        empty.mkdir(exist_ok=True)
        folder = stage_app(check_app(app, run_config), self._work / "app", run_config)
        overrides.write_text(run_config_toml(run_config), encoding="utf-8")
        command = [executable("flwr"), "run", str(folder), CONNECTION, "--format", "json"]
        if run_config:
            command += ["--run-config", str(overrides)]
        if federation:
            command += ["--federation-config", config_arguments(federation)]
        quiet = subprocess.DEVNULL
        done = subprocess.run(
            command, cwd=empty, env=self._env, stdin=quiet, capture_output=True, errors="replace"
        )
        run_id = run_id_from(done.stdout, done.stderr)
        self._check()
        return run_id

    def status(self, run_id: int) -> RunStatus:
        """Return the current status of the run."""
        run = self._runs(run_id=run_id)[run_id]
        status = ":".join(filter(None, [run.status.status, run.status.sub_status]))
        return RunStatus(run_id, status, run.status.details, run.bytes_sent, run.bytes_recv)

    def follow(
        self,
        run_id: int,
        on_log: Callable[[str], None] = lambda line: None,
        finished: Callable[[], bool] = lambda: False,
        patience: float = 60.0,
    ) -> RunStatus:
        """Wait until the run has ended, and return its status.

        ``on_log``: receives every line that the ServerApp prints, at most a second late;
        ``finished``: called every ``PAUSE`` seconds; after it returns True, the status is requested
        every ``POLL`` seconds; ``patience``: longest time in seconds without a response of the
        SuperLink, and between the end of the output and the end of the run.

        Raises ``RuntimeError`` if the SuperLink does not respond in time, and the error of
        ``check``.
        """
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        over = threading.Event()
        reader = threading.Thread(target=self._read, args=(run_id, lines.put, over), daemon=True)
        reader.start()
        answered = asked = time.monotonic()
        begun, ended, reason = answered, False, f"run {run_id} does not end"
        try:
            while True:
                try:
                    line = lines.get(timeout=POLL if ended else PAUSE)
                    if line is not None:
                        on_log(line)
                        continue
                    ended = True
                except queue.Empty:
                    self._check()
                    ended = ended or finished()
                now = time.monotonic()
                if ended or now - asked > SILENCE:
                    asked = now
                    try:
                        status = self.status(run_id)
                        if status.status.startswith(FINISHED):
                            break
                        answered = answered if ended else now
                        if status.status == PENDING and now - begun > LONG:
                            on_log(STUCK.format(run_id=run_id, seconds=LONG))
                            begun = math.inf
                    except grpc.RpcError as error:
                        reason = details(error)
                if now - answered > patience:
                    raise RuntimeError(
                        f"waited {patience:.0f} s in vain for the SuperLink at {self.address}: "
                        f"{reason}"
                    )
        finally:
            over.set()
        reader.join(timeout=2.0)
        while not lines.empty():
            if (line := lines.get()) is not None:
                on_log(line)
        return status

    def running(self) -> dict[int, str]:
        """Return the experiments of the active runs by run id, in ascending order."""
        runs = sorted(self._runs().items())
        active = {i: run for i, run in runs if run.status.status != FINISHED}
        return {i: run.override_config["experiment"].string for i, run in active.items()}

    def _runs(self, **which: int) -> Any:
        return self._control.ListRuns(proto.ListRunsRequest(**which), timeout=ANSWER).run_dict

    def stop(self, run_id: int) -> None:
        """Stop the run; the federation keeps running."""
        self._control.StopRun(proto.StopRunRequest(run_id=run_id), timeout=ANSWER)

    def _read(self, run_id: int, put: Callable[[str | None], None], over: threading.Event) -> None:
        """Pass the ServerApp's output to ``put`` line by line, and None at its end.

        Reading continues after a restart of the SuperLink. The caller sets ``over`` to end it.
        """
        unfinished, since = "", 0.0
        while not over.is_set():
            try:
                request = proto.StreamLogsRequest(run_id=run_id, after_timestamp=since)
                for chunk in self._control.StreamLogs(request):
                    since = chunk.latest_timestamp
                    *complete, unfinished = (unfinished + chunk.log_output).split("\n")
                    for line in complete:
                        put(plain(line))
                break
            except (grpc.RpcError, ValueError):  # the SuperLink or the channel was closed
                over.wait(SILENCE)
        if unfinished:
            put(plain(unfinished))
        put(None)


def run_id_from(stdout: str, stderr: str) -> int:
    """Return the run id from the output of ``flwr run --format json``.

    Raises ``RuntimeError`` with Flower's message for a failure or an unreadable output.
    """
    try:
        answer = json.loads(stdout)
    except json.JSONDecodeError:
        message = (stderr or stdout).strip() or "it printed nothing"
        raise RuntimeError(f"flwr run started no run: {message}") from None
    if not answer.get("success"):
        raise RuntimeError(f"flwr run started no run: {answer.get('error-message', stdout)}")
    return int(answer["run-id"])


def start_superlink(
    processes: Processes,
    work: Path,
    env: Mapping[str, str],
    *,
    simulation: bool,
    certificates: Certificates | None = None,
) -> tuple[Control, str]:
    """Start a SuperLink on 127.0.0.1; return its Control API and the address for SuperNodes.

    ``work``: as in ``Control``; ``env``: added to the environment of the SuperLink and thus of the
    ServerApp; ``simulation``: run the clients in Ray, inside the ServerApp's process tree;
    ``certificates``: use TLS, and admit only registered SuperNodes.

    Raises ``RuntimeError`` with the end of its log if it ends or does not respond in time.
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
    """Return the command line of a SuperLink.

    The Control API has no authentication and the ServerAppIo API no TLS, so both must be on
    127.0.0.1.
    """
    tls = ["--insecure"]
    if certificates is not None:
        tls = ["--ssl-ca-certfile", str(certificates.ca)]
        tls += ["--ssl-certfile", str(certificates.server)]
        tls += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
    common = ["flower-superlink", *tls, "--control-api-address", control]
    # any free port: only the SuperLink's child processes use it
    common += ["--serverappio-api-address", "127.0.0.1:0"]
    return [*common, *(["--simulation"] if simulation else ["--fleet-api-address", fleet])]
