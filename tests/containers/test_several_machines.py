"""The server and two clients on other machines: Compose projects whose networks meet in one."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.flower.certificates import make
from deploy.flower.warm import LINGER
from tests.bench import idle
from tests.support.clone import Clone, steps
from tests.support.data_files import paint
from tests.support.engine import on_this_machine, until

pytestmark = pytest.mark.containers

MODELS = {0: "mlp", 1: "cnn3"}
IDLE = idle.AIMS["warm"]  #: largest proportional set size of an idle client, MiB
SERVER = """
services:
  superlink:
    networks:
      wide: {aliases: [fed.example.org]}
networks:
  wide: {name: WIDE, external: true}
"""
CLIENT = """
services:
  client:
    networks: [own, wide]
networks:
  own: {}
  wide: {name: WIDE, external: true}
"""


class Machines:
    """The server's project, and a project for each client."""

    def __init__(self, clone: Clone, work: Path) -> None:
        self.clone, self.work = clone, work
        self.wide = f"{clone.engine.project}-wide"
        for name, text in (("server.yml", SERVER), ("wide.yml", CLIENT)):
            (work / name).write_text(text.replace("WIDE", self.wide))

    def server(self, command: str) -> subprocess.CompletedProcess[str]:
        files = f"compose.yml:{self.work}/server.yml"
        left_out = {f"CLIENT_{k}": "0" for k in range(6)}
        said = {"COMPOSE_FILE": files, "CLIENTS": "2", "HOSTS": "fed.example.org", **left_out}
        return self.clone.run(command, **said)

    def client(
        self, k: int, command: str, *, check: bool = True, **more: str
    ) -> subprocess.CompletedProcess[str]:
        files = f"compose.client.yml:{self.work}/wide.yml"
        project = f"{self.clone.engine.project}-site-{k}"
        said = {"COMPOSE_FILE": files, "COMPOSE_PROJECT_NAME": project, "CLIENTS": "2"}
        said |= {"SUPERLINK": "fed.example.org:9092", "K": str(k), "MODEL": MODELS[k]}
        said |= {"KEYS": str(self.work / f"keys-{k}"), "DATA": str(self.work / f"data-{k}")}
        return self.clone.run(command, check=check, **{**said, **more})

    def state(self, container: str) -> dict[str, Any]:
        """Return the health of a container, as the engine has it."""
        health: dict[str, Any] = self.clone.engine.inspect(container)["State"].get("Health", {})
        return health

    def name(self, k: int) -> str:
        return self.clone.container("client", f"{self.clone.engine.project}-site-{k}")


@pytest.fixture(scope="module")
def machines(built: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The server is up, and each client has made its key on its own machine."""
    built.run("docker compose --profile '*' down --volumes --timeout 5")
    machines = Machines(built, tmp_path_factory.mktemp("machines"))
    machines.work.chmod(0o755)
    built.engine.run("network", "create", machines.wide)
    keygen = next(b for b in steps("Clients on other machines") if "keygen" in b)
    (line,) = re.findall(r"^docker run .*", keygen, re.M)
    server = next(b for b in steps("Clients on other machines") if "--client 6=" in b)
    (add,) = re.findall(r"^docker compose run .*--client 6=.*", server, re.M)
    try:
        for k in MODELS:
            keys = machines.work / f"keys-{k}"
            keys.mkdir()
            keys.chmod(0o777)
            made = line.replace("$PWD/keys", str(keys)).replace("--k 6", f"--k {k}")
            built.run(made)
            paint(machines.work / f"data-{k}", k, test=6, dark=20, light=20)
            public = add.replace("$PWD/6.pub", f"{keys}/{k}.pub").replace("6=/6.pub", f"{k}=/6.pub")
            machines.server(public)
        paint(machines.work / "data", len(MODELS), test=6, dark=20, light=20)
        blocks = steps("Another experiment, more clients")
        copy = next(block for block in blocks if "/srv/images" in block).splitlines()[0]
        built.run(copy.replace("/srv/images", str(machines.work / "data")))
        machines.server("docker compose run --rm certs")
        authority = "docker compose run --rm -T certs cat /authority/ca.crt"
        text = machines.server(authority).stdout
        for k in MODELS:
            (machines.work / f"keys-{k}" / "ca.crt").write_text(text)
            (machines.work / f"keys-{k}" / "ca.crt").chmod(0o644)
        yield machines
    finally:
        for k in MODELS:
            built.engine.run("rm", "--force", machines.name(k), check=False)
            machines.client(k, "docker compose down --volumes --timeout 5")
        machines.server("docker compose --profile certs down --volumes --timeout 5")
        built.engine.run("network", "rm", machines.wide, check=False)


def test_a_client_leaves_and_returns_and_every_client_learns_from_its_own_images(
    machines: Machines,
) -> None:
    clone = machines.clone
    for k in MODELS:
        machines.client(k, "docker compose up -d")
    networks = [
        set(clone.engine.inspect(machines.name(k))["NetworkSettings"]["Networks"]) for k in MODELS
    ]
    assert networks[0] & networks[1] == {machines.wide}
    settings = "rounds=500 data.name=folder data.partition=own data.dir=/data"
    machines.server(f"RUN=sites SETTINGS='{settings}' docker compose up -d")
    files = f"compose.yml:{machines.work}/server.yml"
    path = "docker compose exec -T serverapp cat /runs/sites/journal.jsonl"

    def rounds(after: int) -> list[dict[str, Any]]:
        """Return the entries of the journal after this round."""
        done = clone.run(path, check=False, COMPOSE_FILE=files)
        lines = [line for line in done.stdout.splitlines() if line.endswith("}")]
        return [json.loads(line) for line in lines][after + 1 :]

    until("both clients in a round", lambda: rounds(0))
    assert rounds(0)[0]["replied"] == [0, 1]
    machines.client(1, "docker compose stop --timeout 5")
    without = until(
        "a round without client 1",
        lambda: [entry for entry in rounds(0) if entry["replied"] == [0]],
    )
    assert {failure["k"] for failure in without[0]["failures"]} <= {1}
    machines.client(1, "docker compose start")
    gone: int = without[0]["round"]

    def whole() -> bool:
        later = rounds(gone)
        return any(entry["replied"] == [0, 1] and not entry["failures"] for entry in later)

    until("a round with client 1 and without a failure", whole)
    census = json.loads(clone.run(path, COMPOSE_FILE=files).stdout.splitlines()[0])
    assert [client["model"] for client in census["clients"]] == list(MODELS.values())
    assert [client["n"] for client in census["clients"]]
    machines.server("docker compose stop --timeout 5 experiment serverapp")


QUICK = """
services:
  client:
    healthcheck: {interval: 1s, start_period: 1s, retries: 2}
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("authority", "the server's certificate is not accepted"),
        ("data", "user 49999 cannot read the folder"),
        ("twice", "client 0 is connected already"),
    ],
)
def test_a_client_that_cannot_start_is_unhealthy_with_one_line(
    machines: Machines, tmp_path: Path, name: str, line: str
) -> None:
    keys, data = tmp_path / "keys", tmp_path / "data"
    shutil.copytree(machines.work / "keys-0", keys)
    os.chown(keys / "0.key", 49999, 49999)
    shutil.copytree(machines.work / "data-0", data)
    if name == "authority":
        shutil.copy(make(tmp_path / "other", [], 0).ca, keys / "ca.crt")
        (keys / "ca.crt").chmod(0o644)
    if name == "data":
        (data / "train").chmod(0o700)
    (tmp_path / "quick.yml").write_text(QUICK)
    project = f"{machines.clone.engine.project}-bad"
    files = f"compose.client.yml:{machines.work}/wide.yml:{tmp_path}/quick.yml"
    more = {"COMPOSE_PROJECT_NAME": project, "COMPOSE_FILE": files}
    more |= {"KEYS": str(keys), "DATA": str(data)}
    machines.client(0, "docker compose up -d")
    until("client 0", lambda: machines.state(machines.name(0)).get("Status") == "healthy")
    machines.server("docker compose up -d superlink")
    try:
        machines.client(0, "docker compose up -d", **more)
        container = machines.clone.container("client", project)

        def said() -> str:
            health = machines.state(container)
            texts = [check["Output"] for check in health.get("Log") or []]
            return "".join(texts) if health["Status"] == "unhealthy" else ""

        until(lambda: f"{line}, not {said()}", lambda: line in said())
        done = machines.clone.engine.run("logs", container)
        lines = [text for text in (done.stdout + done.stderr).splitlines() if line in text]
        assert len(lines) == 1 and lines[0].startswith("error: "), lines
    finally:
        machines.client(0, "docker compose down --volumes --timeout 5", **more)


def test_a_client_without_a_key_is_refused_by_the_engine_in_one_line(
    machines: Machines, tmp_path: Path
) -> None:
    done = machines.client(0, "docker compose up -d", check=False, KEYS=str(tmp_path))
    assert done.returncode != 0
    assert "bind source path does not exist" in done.stderr.strip().splitlines()[-1]


def test_an_idle_client_takes_little_memory(machines: Machines) -> None:
    """Check the memory of a client without a warm process; the last test, as that takes minutes."""
    engine = machines.clone.engine
    if not on_this_machine(engine):
        pytest.skip("the engine's processes are not on this machine")
    machines.client(0, "docker compose up -d")
    name = machines.name(0)

    def seconds() -> float:
        """Return the time since the start of the container."""
        started = engine.inspect(name)["State"]["StartedAt"]
        return (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds()

    def pss() -> float:
        """Return the proportional set size of all processes of client 0 in MiB."""
        pids = engine.run("top", name, "-eo", "pid").stdout.split()[1:]
        return idle.pss([int(pid) for pid in pids])

    until("the end of its first warm process", lambda: seconds() > LINGER)
    until(lambda: f"less than {IDLE} MiB, not {pss():.0f}", lambda: 0 < pss() <= IDLE)
