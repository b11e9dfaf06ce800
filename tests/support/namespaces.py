"""Hosts of a test network: each is a network namespace with its own address and name.

Every host has a wire (a veth pair) to each of its switches (bridges), finds the other hosts there
by name, and has the test's file system. The switches are in a separate namespace, so the machine's
own network is unchanged. A holder process that reads a pipe keeps each namespace open. When the
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
from typing import Self, final

SUBNETS = IPv4Network("10.208.0.0/12")  #: a /16 for each switch; inside the namespaces only
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
    done = subprocess.run(
        ["unshare", *NAMESPACES, "sh", "-c", attempt], capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        return (
            f"network namespaces are not allowed here: {done.stderr.strip() or 'no reason given'}"
        )
    return None


@final
class Host:
    """One host of a ``Network``."""

    def __init__(self, name: str, switches: int, wires: Mapping[str, tuple[str, str]]) -> None:
        """Make the host; called by ``Network.host``.

        ``switches``: process id of the namespace with the switches; ``wires``: for each switch the
        name of this host's port there, and its address/length.
        """
        self.name = name
        addresses = [address.partition("/")[0] for _, address in wires.values()]
        self.address = addresses[0] if addresses else ""  #: on its first switch
        self._switches = switches
        self._known: set[str] = set()
        self._wires = {switch: port for switch, (port, _) in wires.items()}
        with tempfile.NamedTemporaryFile("w", prefix="hosts-", delete=False) as file:
            file.write("127.0.0.1 localhost\n")
        self._file = Path(file.name)
        self._file.chmod(0o644)
        self._holder = _hold(file.name)
        try:
            lines = [
                f"hostname {name}",
                f"mount --bind {self._file} /etc/hosts",
                "ip link set lo up",
            ]
            for i, (switch, (port, address)) in enumerate(wires.items()):
                pair = f"ip link add {port} type veth peer name eth{i} netns {self._holder.pid}"
                _inside(switches, f"{pair} && ip link set {port} master {switch} up")
                lines += [f"ip address add {address} dev eth{i}", f"ip link set eth{i} up"]
            _inside(self._holder.pid, " && ".join(lines))
        except BaseException:
            self.close()
            raise

    def know(self, address: IPv4Address, names: Sequence[str]) -> None:
        """Add a line for ``address`` with the new ``names`` to this host's ``/etc/hosts``.

        Each name has one address only. gRPC treats lines that share a name as one machine, and a
        server would listen on the addresses of all of them.
        """
        new = [name for name in names if name not in self._known]
        self._known.update(new)
        if new:
            with self._file.open("a") as file:  # in place, because this file is mounted
                file.write(f"{address} {' '.join(new)}\n")

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` on this host; return the command's own process.

        ``command``: its program is searched on the test's PATH; ``env``: its complete environment;
        ``log``: file to which its output and errors are appended; ``cwd``: its working directory.
        None: the test's environment, no log, the test's directory.
        """
        with open(log or os.devnull, "ab") as output:
            return subprocess.Popen(
                [*self.enter(cwd), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on this host until it ends, with any exit status."""
        return subprocess.run(
            [*self.enter(cwd), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=None if env is None else dict(env),
            timeout=timeout,
        )

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
        """Disconnect all wires: packets in both directions are lost without an error."""
        for port in self._wires.values():
            _inside(self._switches, f"ip link set {port} nomaster")

    def mend(self) -> None:
        """Connect the wires again."""
        for switch, port in self._wires.items():
            _inside(self._switches, f"ip link set {port} master {switch}")

    def hang_up(self) -> None:
        """Start to end all processes of this host, then the host itself."""
        _hang_up(self._holder)

    def close(self) -> None:
        """End all processes of this host and the host itself; may be called again."""
        _release(self._holder)


@final
class Network:
    """Context with hosts on switches; at its end every process on every host ends."""

    def __init__(self, *switches: str) -> None:
        """``switches``: names of at most 15 letters; one called ``net`` if none is named."""
        self._subnets = dict(
            zip(switches or ("net",), SUBNETS.subnets(new_prefix=16), strict=False)
        )
        self._hosts: dict[str, Host] = {}
        self._addresses: dict[str, dict[IPv4Address, list[str]]] = {s: {} for s in self._subnets}
        self._members: dict[str, list[Host]] = {switch: [] for switch in self._subnets}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._switches = _hold()
            stack.callback(_release, self._switches)
            for switch in self._subnets:
                _inside(self._switches.pid, f"ip link add {switch} up type bridge")
            stack.callback(self._close_hosts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def host(self, name: str, *aliases: str, on: Mapping[str, Sequence[str]] | None = None) -> Host:
        """Add a host; the others on its switches find it by ``name`` and ``aliases``.

        ``on``: the switches that it is on, each with further aliases there; default: all.
        """
        assert name not in self._hosts, name
        on = {switch: () for switch in self._subnets} if on is None else on
        number = len(self._hosts) + 1
        addresses = {switch: self._subnets[switch][number] for switch in on}
        wires = {
            switch: (f"port{number}-{i}", f"{address}/{self._subnets[switch].prefixlen}")
            for i, (switch, address) in enumerate(addresses.items())
        }
        host = self._hosts[name] = Host(name, self._switches.pid, wires)
        for switch, address in addresses.items():
            for known, names in self._addresses[switch].items():
                host.know(known, names)
            self._addresses[switch][address] = [name, *aliases, *on[switch]]
            self._members[switch].append(host)
            for member in self._members[switch]:
                member.know(address, self._addresses[switch][address])
        return host

    def _close_hosts(self) -> None:
        for host in self._hosts.values():
            host.hang_up()
        for host in self._hosts.values():
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
