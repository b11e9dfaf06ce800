"""Hosts of a test network: each is a network namespace with its own address and name.

Every host has a wire (a veth pair) to the switch (a bridge), finds the other hosts by name, and has
the test's file system. The switch is in a separate namespace, so the machine's own network is
unchanged. A holder process that reads a pipe keeps each namespace open. When the
pipe closes, at the end of the context or of the test process, the holder ends every process of its
host and itself. The kernel then removes wires, bridges and mounts.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Self, final

Done = subprocess.CompletedProcess[str]
Env = Mapping[str, str] | None
SUBNET = IPv4Network("10.208.0.0/16")  #: inside the namespaces only
GRACE = 5.0  #: seconds between SIGTERM and SIGKILL for a host's processes
NAMESPACES = ("--net", "--mount", "--uts")

HOLDER = """
import os, signal, sys, time

def processes():
    here, pids = os.stat("/proc/self/ns/net").st_ino, []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat("/proc/" + name + "/ns/net").st_ino == here:
                pids.append(int(name))
        except OSError:  # it has ended
            pass
    return [pid for pid in pids if pid != os.getpid()]

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.readline()
for number in (signal.SIGTERM, signal.SIGKILL):
    signalled, deadline = set(), time.monotonic() + float(sys.argv[1])
    while (left := set(processes())) and time.monotonic() < deadline:
        for pid in left - signalled:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        signalled |= left
        time.sleep(0.05)
for path in sys.argv[2:]:
    os.unlink(path)
"""


def allowed() -> str | None:
    """Return why network namespaces cannot be made here; None if they can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's; this is {sys.platform}"
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed (Debian: iproute2 and util-linux)"
    attempt = "mount --make-rprivate / && ip link add b0 type bridge && ip link add v0 type veth"
    command = ["unshare", *NAMESPACES, "sh", "-c", attempt]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        return f"network namespaces are not allowed here: {done.stderr.strip() or 'no reason'}"
    return None


@final
class Host:
    """One host of a ``Network``."""

    def __init__(self, name: str, switch: int, port: str, address: IPv4Address) -> None:
        """Make the host; called by ``Network.host``.

        ``switch``: process id of the namespace with the switch; ``port``: name of this host's port
        there.
        """
        self.name, self.address, self._switch, self._port = name, str(address), switch, port
        with tempfile.NamedTemporaryFile("w", prefix="hosts-", delete=False) as file:
            file.write("127.0.0.1 localhost\n")
        self._file = Path(file.name)
        self._file.chmod(0o644)
        self._holder = _hold(file.name)
        try:
            pair = f"ip link add {port} type veth peer name eth0 netns {self._holder.pid}"
            _inside(switch, f"{pair} && ip link set {port} master net up")
            lines = [f"hostname {name}", f"mount --bind {self._file} /etc/hosts"]
            lines += ["ip link set lo up", f"ip address add {address}/{SUBNET.prefixlen} dev eth0"]
            lines += ["ip link set eth0 up"]
            _inside(self._holder.pid, " && ".join(lines))
        except BaseException:
            self.close()
            raise

    def know(self, other: Self) -> None:
        """Add another host, or this one, to this host's ``/etc/hosts``."""
        with self._file.open("a") as file:  # in place, because this file is mounted
            file.write(f"{other.address} {other.name}\n")

    def start(
        self,
        command: Sequence[str],
        env: Env = None,
        log: Path | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` on this host; return the command's own process.

        ``command``: its program is searched on the test's PATH; ``env``: its complete environment;
        ``log``: file to which its output and errors are appended; ``cwd``: its working directory.
        None: the test's environment, no log, the test's directory.
        """
        with open(log or os.devnull, "ab") as output:
            given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": env and dict(env)}
            given |= {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            return subprocess.Popen([*self.enter(cwd), *command], **given)

    def run(
        self,
        command: Sequence[str],
        env: Env = None,
        cwd: Path | None = None,
        timeout: float = 60.0,
    ) -> Done:
        """Run ``command`` on this host until it ends, with any exit status."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": env and dict(env)}
        line = [*self.enter(cwd), *command]
        return subprocess.run(line, capture_output=True, text=True, timeout=timeout, **given)

    def enter(self, cwd: Path | None = None) -> list[str]:
        """Return the prefix of a command that runs it on this host."""
        return [*_enter(self._holder.pid), f"--wdns={cwd or Path.cwd()}"]

    def processes(self) -> list[int]:
        """Return the ids of all processes of this host, as in the test's namespace."""
        namespace = os.stat(f"/proc/{self._holder.pid}/ns/net").st_ino
        pids = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino == namespace:
                    pids.append(int(entry.name))
        return [pid for pid in pids if pid != self._holder.pid]

    def cut(self) -> None:
        """Disconnect the wire: packets in both directions are lost without an error."""
        _inside(self._switch, f"ip link set {self._port} nomaster")

    def mend(self) -> None:
        """Connect the wire again."""
        _inside(self._switch, f"ip link set {self._port} master net")

    def hang_up(self) -> None:
        """Start to end all processes of this host, then the host itself."""
        _hang_up(self._holder)

    def close(self) -> None:
        """End all processes of this host and the host itself; may be called again."""
        _release(self._holder)


@final
class Network:
    """Context with hosts on a switch; at its end every process on every host ends."""

    def __enter__(self) -> Self:
        self._hosts: list[Host] = []
        with contextlib.ExitStack() as stack:
            self._switch = _hold()
            stack.callback(_release, self._switch)
            _inside(self._switch.pid, "ip link add net up type bridge")
            stack.callback(self._close_hosts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def host(self, name: str) -> Host:
        """Add a host; it and the others find each other by name."""
        number = len(self._hosts) + 1
        host = Host(name, self._switch.pid, f"port{number}", SUBNET[number])
        for other in self._hosts:
            host.know(other)
        self._hosts.append(host)
        for member in self._hosts:
            member.know(host)
        return host

    def _close_hosts(self) -> None:
        for host in self._hosts:
            host.hang_up()
        for host in self._hosts:
            host.close()


def _hold(*files: str) -> subprocess.Popen[bytes]:
    """Start a holder in new namespaces; when its stdin closes, it ends all processes in them.

    ``files``: files that it removes at its end.
    """
    holder = subprocess.Popen(
        ["unshare", *NAMESPACES, sys.executable, "-I", "-S", "-c", HOLDER, str(GRACE), *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        _release(holder)
        raise RuntimeError(f"no namespaces to be had: {allowed() or 'the holder ended at once'}")
    return holder


def _hang_up(holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None
    if not holder.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            holder.stdin.write(b"\n")  # a fork may keep the pipe open, so end of file is not enough
            holder.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.close()


def _release(holder: subprocess.Popen[bytes]) -> None:
    _hang_up(holder)
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", *NAMESPACES]


def _inside(pid: int, line: str) -> None:
    command = [*_enter(pid), "sh", "-c", line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr.strip()}")
