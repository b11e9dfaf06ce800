"""The steps of docs/docker.md as written, on one machine, by a real engine."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.clone import Clone, steps
from tests.support.data_files import paint
from tests.support.engine import until

pytestmark = pytest.mark.containers

CLIENTS = [f"client-{k}" for k in range(6)]
LONG_RUNNING = ["superlink", "serverapp", *CLIENTS]
LARGEST = 1.2e9  #: bytes of an image


def summary(clone: Clone, run: str) -> dict[str, Any]:
    done = clone.run(f"docker compose exec -T serverapp cat /runs/{run}/summary.json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def finished(clone: Clone) -> None:
    """Wait for the end of the service ``experiment``; fail with its log for another status."""
    name = clone.container("experiment")

    def ended() -> bool:
        state = clone.engine.inspect(name)["State"]
        return state["Status"] == "exited" and state["Restarting"] is False

    until("the end of the experiment", ended)
    log = clone.engine.run("logs", "--tail", "20", name)
    assert clone.engine.inspect(name)["State"]["ExitCode"] == 0, log.stdout + log.stderr


def test_the_default_experiment_completes_with_the_weights_of_loopback(
    clone: Clone, tmp_path: Path
) -> None:
    assert "completed;" in clone.said and re.search(r"experiment.*Exited \(0\)", clone.said)
    _, copy, *_ = steps("From a clone to a finished run")
    clone.run(copy)
    results = clone.docker / "default"
    assert (results / "report.html").exists()
    checked = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "verify", str(results)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    script = (
        "fedmosaic run --workers 0 --out /tmp/run > /dev/null; sha256sum /tmp/run/model.safetensors"
    )
    loop = clone.engine.run("run", "--rm", clone.image(), "sh", "-euc", script).stdout.split()[0]
    assert hashlib.sha256((results / "model.safetensors").read_bytes()).hexdigest() == loop
    found = json.loads((results / "summary.json").read_text())
    assert (found["status"], found["failures"]) == ("completed", [])


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_a_container_is_healthy_and_confined(clone: Clone, service: str) -> None:
    name = clone.container(service)
    until(
        f"{service} to be healthy",
        lambda: clone.engine.inspect(name)["State"]["Health"]["Status"] == "healthy",
    )
    said = clone.engine.inspect(name)
    assert said["Config"]["User"] == "49999:49999" and said["HostConfig"]["ReadonlyRootfs"]
    assert said["RestartCount"] == 0
    shown = clone.engine.run("exec", name, "cat", "/proc/self/status").stdout
    status = dict(line.split(":\t", 1) for line in shown.splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["49999"] * 4
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    for path in ("/app/x", "/opt/venv/x", "/etc/x"):
        touched = clone.engine.run("exec", name, "touch", path, check=False)
        assert "Read-only file system" in touched.stderr, path
    published = {port for port, at in said["NetworkSettings"]["Ports"].items() if at}
    assert published == ({"9092/tcp"} if service == "superlink" else set())


def test_a_client_sees_its_own_key_and_reaches_the_fleet_api_alone(clone: Clone) -> None:
    reach = "import socket, sys; socket.create_connection(sys.argv[1:3], 3)"
    for k, service in enumerate(CLIENTS):
        name = clone.container(service)
        shown = clone.engine.run("exec", name, "find", "/keys", "-type", "f").stdout.split()
        assert sorted(shown) == [f"/keys/{k}.key", "/keys/ca.crt"]
    name = clone.container("client-0")
    for host, port, reached in (
        *(("superlink", "9092", True), ("superlink", "9093", False)),
        *(("control", "9093", False), ("superlink", "9091", False)),
    ):
        tried = clone.engine.run("exec", name, "python", "-c", reach, host, port, check=False)
        assert (tried.returncode == 0) is reached, (host, port, tried.stderr)


def test_an_image_is_small_and_lists_its_packages(clone: Clone) -> None:
    for client in (False, True):
        image = clone.image(client)
        text = clone.engine.run("run", "--rm", image, "cat", "/usr/share/sbom/fedmosaic.cdx.json")
        bill = json.loads(text.stdout)
        names = {part["name"] for part in bill["components"]}
        assert bill["bomFormat"] == "CycloneDX" and {"torch", "flwr", "python", "libc6"} <= names
        assert ("matplotlib" in names) is not client
        assert clone.engine.inspect(image)["Size"] <= LARGEST


def test_another_experiment_and_settings_come_from_the_file_of_variables(clone: Clone) -> None:
    variables = "EXPERIMENT=fedorion_toy\nRUN=toy\nSETTINGS=rounds=2 train.lr=0.02\n"
    (clone.docker / ".env").write_text(variables)
    try:
        clone.run("docker compose up -d")
        finished(clone)
    finally:
        (clone.docker / ".env").unlink()
    assert summary(clone, "toy")["status"] == "completed"
    assert summary(clone, "toy")["rounds"] == 2
    config = clone.run("docker compose exec -T serverapp cat /runs/toy/config.toml").stdout
    assert "lr = 0.02" in config


def test_ones_own_experiment_file_is_run(clone: Clone) -> None:
    text = 'method = "fedavg"\nrounds = 1\nfleet = "mlp"\n[data]\nname = "digits"\n'
    (clone.docker / "my.toml").write_text(text)
    (line,) = re.findall(
        r"^docker compose run .*experiment$",
        "".join(steps("Another experiment, more clients")),
        re.M,
    )
    (clone.docker / "my.toml").chmod(0o644)
    clone.run(line)
    assert summary(clone, "mine")["status"] == "completed"


def test_a_folder_of_images_is_learnt(clone: Clone, tmp_path: Path) -> None:
    paint(tmp_path, 1, test=6, dark=40, light=40)
    (block,) = [text for text in steps("Another experiment, more clients") if "/srv/images" in text]
    copy, start = block.replace("/srv/images", str(tmp_path)).splitlines()
    clone.run(copy)
    settings = "data.name=folder data.dir=/data rounds=1 fleet=mlp,cnn3"
    assert 'SETTINGS="data.name=folder data.dir=/data"' in start
    clone.run(start.replace("data.name=folder data.dir=/data", settings))
    finished(clone)
    assert summary(clone, "images")["status"] == "completed"


def test_down_keeps_the_volumes_and_with_volumes_deletes_them(clone: Clone) -> None:
    prefix = clone.volume("")

    def volumes() -> set[str]:
        listed = clone.engine.run("volume", "ls", "--quiet").stdout.split()
        return {name for name in listed if name.startswith(prefix)}

    before = volumes()
    clone.run("docker compose down")
    assert volumes() == before and clone.volume("runs") in before
    clone.run("docker compose --profile certs down --volumes")
    assert volumes() == set()
