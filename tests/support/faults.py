"""Runs for fault tests, with functions that find, stop and kill their processes.

Every process of a federation has its own FLWR_HOME, by which it is found. If ``FAULTS`` names a
folder, each fault and its duration is recorded there for the table in the docs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from client_app.bases.own_model import ClientState
from common.exchange.model_file import digest
from common.parse import to_toml
from common.settings.config import Value
from deploy.flower.certificates import make
from deploy.flower.control import Control, superlink_command
from deploy.flower.processes import environment, free_ports
from deploy.flower.watchdog import end
from tests.support.commandline import command_line, completed
from tests.support.namespaces import Host
from tests.support.tiny import TinyRun, flat
from tests.support.waiting import PATIENCE, until

CLIENTS = 3
SERVER_APP, CLIENT_APP, NODE = "flwr-serverapp", "flwr-clientapp", "flower import supernode"
COLD = "--cold-start"  #: forked processes lack the command line by which processes are found
TORCH = "libtorch"  #: library that a ClientApp loads after receiving its message


def settings(out: Path, **changes: Any) -> dict[str, Value]:
    """Return the settings of FedORION, whose clients save private models, on the set ``toy``."""
    usual = {"clients": CLIENTS, "rounds": 3, "timeout": 120.0, "experiment": "faults"}
    return flat(out, **{**usual, **changes})


def private_models(state: Path, clients: int = CLIENTS) -> dict[int, str]:
    """Return a digest of the newest private model of every client, after checking all files."""
    digests = {}
    for folder in (state / "faults").iterdir():
        files = sorted(folder.glob("*/*.safetensors"), key=lambda path: int(path.parent.name))
        assert files, f"client {folder.name} has no private model"
        hidden = [p for p in folder.rglob("*") if p.is_file() and p.name.startswith(".")]
        assert not hidden, f"temporary files: {hidden}"
        digests[int(folder.name)] = digest(ClientState.load(files[-1]).local)
    assert sorted(digests) == list(range(clients))
    return digests


def processes(home: Path, program: str) -> set[int]:
    """Return the running processes of ``program`` with FLWR_HOME ``home``."""
    pids = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and program.encode() in (entry / "cmdline").read_bytes():
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if f"FLWR_HOME={home}".encode() in variables and state not in "ZX":
                    pids.add(int(entry.name))
    return pids


def name_of(pid: int) -> str:
    """Return the name of a process, of at most 15 letters; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def maps(pid: int, library: str) -> bool:
    """Return whether a process has loaded a library."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


class Run:
    """A run in progress; ``out``: its folder, ``homes``: folder of the processes' FLWR_HOMEs."""

    def __init__(self, out: Path, homes: Path) -> None:
        self.out, self._homes = out, homes
        self.struck = 0.0

    @property
    def journal(self) -> list[dict[str, Any]]:
        path = self.out / "journal.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def home(self, name: str) -> Path:
        return self._homes / name

    def check(self) -> None:
        """Raise ``AssertionError`` if the run has failed."""

    def await_round(self, t: int) -> None:
        """Wait for the journal's line of round t."""

        def there() -> bool:
            self.check()
            return len(self.journal) > t

        until(f"round {t}", there)

    def client_app(self, k: int, t: int, *, working: bool) -> int:
        """Wait for client k's process of round t + 1; ``working``: until it has its message.

        Processes that exist before the journal's line of round t are of an earlier round. They are
        collected before that line, because the next process may start together with it.
        """
        home = self.home(f"supernode-{k}")
        before: set[int] = set()

        def over() -> bool:
            self.check()
            seen = processes(home, CLIENT_APP)
            if len(self.journal) > t:
                return True
            before.update(seen)
            return False

        def fresh() -> list[int]:
            now = processes(home, CLIENT_APP) - before
            return [pid for pid in now if not working or maps(pid, TORCH)]

        until(f"round {t}", over)
        return until(f"client {k}'s ClientApp of round {t + 1}", fresh)[0]

    def strike(self, pids: Sequence[int] | set[int], number: signal.Signals) -> None:
        """Send the signal to the processes, and note the time of this fault."""
        assert pids, "no process to signal"

        def send() -> None:
            for pid in pids:
                os.kill(pid, number)

        self.strike_by(send)

    def strike_by(self, fault: Callable[[], object]) -> None:
        """Call ``fault``, and note its time."""
        self.struck = time.monotonic()
        fault()

    def since(self) -> float:
        """Return the seconds since the fault."""
        return round(time.monotonic() - self.struck, 1)

    def await_failure(self, k: int) -> tuple[float, dict[str, Any]]:
        """Wait for a failure of client k in the journal; return it after the seconds it took."""

        def named() -> list[dict[str, Any]]:
            self.check()
            return [f for entry in self.journal for f in entry["failures"] if f["k"] == k]

        failure = until(f"a failure of client {k}", named)[0]
        return self.since(), failure


class Launched(Run):
    """``fedmosaic run --runtime grpc`` as a process, with SuperLink and SuperNodes."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        out = folder / "out"
        super().__init__(out, out / "flower" / "home")
        file = folder / "experiment.toml"
        named = settings(out, **changes) | {"out": "", "state-dir": ""}
        file.write_text(to_toml(named))
        self._start("run", str(file), "--runtime", "grpc", COLD, "--out", str(out))

    def _start(self, *arguments: str) -> None:
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = command_line(*arguments)
        self.process = subprocess.Popen(line, **output, text=True, start_new_session=True)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for name in ("superlink", *(f"supernode-{k}" for k in range(CLIENTS))):
            until(f"the end of {name}", partial(self._ended, name))

    def _ended(self, name: str) -> bool:
        return not processes(self.home(name), "flw")

    def check(self) -> None:
        assert not self.process.poll(), self.process.communicate()

    def end(self) -> tuple[int, str, float]:
        """Wait for the end; return exit status, error output and seconds since the fault."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in output + errors, output + errors
        return self.process.returncode, errors.strip(), self.since()

    def completed(self) -> TinyRun:
        """Wait until the run ends, and check that it succeeded."""
        status, errors, _ = self.end()
        assert status == 0, errors
        return TinyRun(self.out)

    def resume(self, runtime: str) -> TinyRun:
        """Run ``fedmosaic run --resume`` until it ends."""
        if runtime == "loopback":
            completed("run", "--resume", self.out, "--runtime", runtime, "--workers", 0)
            return TinyRun(self.out)
        self._start("run", "--resume", str(self.out), "--runtime", runtime, COLD)
        return self.completed()


class Sealed(Launched):
    """``fedmosaic local`` with TLS, keys and sealed messages."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        Run.__init__(self, folder / "out", folder / "local" / "home")
        file = folder / "experiment.toml"
        file.write_text(to_toml(settings(self.out, **changes)))
        self._start("local", str(file), "--work", str(folder / "local"), COLD)


def resumed(out: Path) -> TinyRun:
    completed("run", "--resume", out, "--runtime", "loopback", "--workers", 0)
    return TinyRun(out)


class Machines(Run):
    """A run by the commands for separate machines, on hosts, or on this machine for None."""

    def __init__(
        self,
        folder: Path,
        server: Host | None = None,
        clients: Sequence[Host] = (),
        *,
        durable: bool = False,
        size: int = CLIENTS,
        later: Sequence[int] = (),
        warm: bool = False,
        sealed: bool = False,
        **changes: Any,
    ) -> None:
        """``durable``: the SuperLink has a database, and ServerApps are not its child processes.

        ``size``: number of clients; ``later``: clients whose nodes are not started here; ``warm``:
        whether nodes have warm processes, and the run is submitted when these have their imports;
        ``sealed``: whether there are TLS, registered keys and sealed messages.
        """
        super().__init__(folder / "out", folder / "home")
        self.size, self._warm = size, warm
        self._logs, self._server, self._clients = folder / "logs", server, clients
        self._logs.mkdir(parents=True)
        self._started: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}  #: the newest process of each client
        control, fleet, appio = free_ports(3)
        name = "127.0.0.1" if server is None else "server"
        self._fleet, self._control = f"{name}:{fleet}", f"127.0.0.1:{control}"
        reached = f"0.0.0.0:{fleet}" if server else self._fleet
        files = make(folder / "certs", [], size) if sealed else None
        self._trust = ["--insecure"] if files is None else ["--ca", str(files.ca)]
        self._env = {} if files is None else {"FEDMOSAIC_TRUST": str(files.folder)}
        self._command = [*superlink_command(self._control, reached, False, files)]
        apps = f"127.0.0.1:{appio}"
        if durable:  # Flower uses the last of two equal options
            self._command += ["--serverappio-api-address", apps, "--isolation", "process"]
            self._command += ["--database", str(folder / "superlink.db")]
        self.superlink = self.start_superlink()
        if durable:
            beside = ["flower-superexec", "--insecure", "--plugin-type", "serverapp"]
            self._start("superexec", [*beside, "--appio-api-address", apps], server, "superlink")
        if files is not None:
            with Control(self._control, files.ca, folder) as api:
                api.await_answer(PATIENCE)
                for k in range(size):
                    api.register(files.public(k))
        first = [k for k in range(size) if k not in later]
        for k in first:
            self.start_node(k)
        for k in first if warm else ():
            until(f"the imports of client {k}", partial(self._imported, k))
        file = folder / "experiment.toml"
        file.write_text(to_toml(settings(self.out, clients=size, **changes)))
        line = ["submit", str(file), *self._trust, "--superlink", self._control, "--wait", "90"]
        self.submitted = self._start("submit", command_line(*line), server)

    def log(self, name: str) -> str:
        """Return the log of the process so far."""
        path = self._logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def pids(self, k: int) -> set[int]:
        """Return the running processes of client k's node."""
        return processes(self.home(f"supernode-{k}"), "")

    def _imported(self, k: int) -> bool:
        return any(maps(pid, TORCH) for pid in self.pids(k))

    def start_superlink(self) -> subprocess.Popen[bytes]:
        return self._start("superlink", self._command, self._server)

    def start_node(self, k: int) -> subprocess.Popen[bytes]:
        host = self._clients[k] if self._clients else None
        line = ["node", "--superlink", self._fleet, *self._trust, "--k", str(k)]
        line += ["--clients", str(self.size), "--home", str(self.home(f"supernode-{k}"))]
        line += [] if self._warm else [COLD]
        line += ["-s", f"state-dir={self.out / 'state'}"]
        self.nodes[k] = self._start(f"supernode-{k}", command_line(*line), host)
        return self.nodes[k]

    def working(self, k: int) -> set[int]:
        """Return the ClientApps of client k, of which a forked one has only a name."""
        named = {pid for pid in self.pids(k) if name_of(pid) == CLIENT_APP}
        return named | processes(self.home(f"supernode-{k}"), CLIENT_APP)

    def _start(
        self, name: str, command: Sequence[str], host: Host | None, home: str = ""
    ) -> subprocess.Popen[bytes]:
        env = environment(self._env, self.home(home or name))
        log = self._logs / f"{name}.log"
        if host is not None:
            process = host.start(command, env, log)
        else:
            with log.open("ab") as file:
                output: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT}
                output |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
                process = subprocess.Popen(command, env=env, **output)
        self._started.append(process)
        return process

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *error: object) -> None:
        end({process.pid for process in self._started}, 5.0)
        for process in self._started:
            process.wait()

    def check(self) -> None:
        status = self.submitted.poll()
        assert not status, (self._logs / "submit.log").read_text()

    def end(self) -> TinyRun:
        """Wait until the submitted run ends, and check that it succeeded."""
        status = self.submitted.wait(PATIENCE)
        assert status == 0, (self._logs / "submit.log").read_text()
        return TinyRun(self.out)


@contextlib.contextmanager
def throttled(pid: int, share: float) -> Iterator[None]:
    """Limit a process to ``share`` of a processor, measured by its processor time.

    On a busy machine the limiter may act late; the process then pauses for longer.
    """
    code = (
        "import os, signal, sys, time; pid, share = int(sys.argv[1]), float(sys.argv[2])\n"
        "def had():\n"
        "    fields = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()\n"
        "    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')\n"
        "before, start = had(), time.monotonic()\n"
        "while True:\n"
        "    over = had() - before >= share * (time.monotonic() - start)\n"
        "    os.kill(pid, signal.SIGSTOP if over else signal.SIGCONT); time.sleep(0.02)\n"
    )
    line = [sys.executable, "-c", code, str(pid), str(share)]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as brake:
        try:
            yield
        finally:
            brake.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def record(name: str, fault: str, seen: str, seconds: float, end: tuple[str, str]) -> None:
    """Record a fault for the table; ``end``: outcome of the run, and of its final weights."""
    if folder := os.environ.get("FAULTS"):
        row = {"fault": fault, "seen": seen, "seconds": seconds}
        row |= zip(("after", "weights"), end, strict=True)
        (Path(folder) / f"{name}.json").write_text(json.dumps(row))
