"""What goes wrong with containers, one thing a run of two clients; nothing may be lost.

A run in which every reply came in the end has the weights of the undisturbed one, bit for bit.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.report.table import markdown
from tests.bench import faults
from tests.support import compose
from tests.support.clone import Clone
from tests.support.engine import on_this_machine, until
from tests.support.faults import record

faulty = pytest.mark.faults
ROUNDS = 40
SETTINGS = f"rounds={ROUNDS} fleet=mlp,cnn3 global-model=mlp data.alpha=10 keep=3"
OTHER = """
FROM {image}
USER 0
RUN echo "# another version" >> /app/common/losses/__init__.py
USER 49999:49999
"""
EXTRA = """
services:
  client-1:
    image: ${OTHER_IMAGE}
    environment: {PYTHONPATH: /clock, JUMP: /clock/jump}
    volumes: ["CLOCK:/clock:ro"]
volumes:
  runs:
    driver_opts: {type: tmpfs, device: tmpfs, o: "size=48m,uid=49999,gid=49999"}
"""
SAME, LOST = "as undisturbed", "without the lost replies"


@dataclass
class Federation:
    """A server and two clients; the volume ``runs`` is small, and client 1's clock can be set."""

    clone: Clone
    work: Path
    variables: dict[str, str] = field(default_factory=dict)
    reference: str = ""

    def compose(self, command: str, *, check: bool = True, **more: str) -> str:
        variables = {**self.variables, **more}
        done = self.clone.run(f"docker compose {command}", check=check, **variables)
        return done.stdout + done.stderr

    def name(self, service: str) -> str:
        return self.clone.container(service)

    def docker(self, *arguments: str) -> str:
        return self.clone.engine.run(*arguments).stdout

    def journal(self, run: str) -> list[dict[str, Any]]:
        place = Path(self.clone.engine.inspect(self.clone.volume("runs"))["Mountpoint"])
        path = place / run / "journal.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def weights(self, run: str) -> str:
        done = self.docker(
            "exec", self.name("serverapp"), "sha256sum", f"/runs/{run}/model.safetensors"
        )
        return done.split()[0]

    def memory(self, name: str) -> int:
        """Return the bytes of a container that cannot be freed; cgroups are of version 1 or 2."""
        read = "cat /sys/fs/cgroup/memory.stat /sys/fs/cgroup/memory/memory.stat || true"
        lines = self.docker("exec", name, "sh", "-c", read).splitlines()
        stat = {name: int(count) for name, _, count in (line.partition(" ") for line in lines)}
        return stat.get("anon", stat.get("rss", 0)) + stat["shmem"]

    def idle(self, name: str) -> int | None:
        """Return ``memory`` if no ClientApp has been there meanwhile."""

        def at_work() -> bool:
            return "flwr-clientapp" in self.docker("top", name, "-eo", "pid,comm")

        used = None if at_work() else self.memory(name)
        return None if at_work() else used

    def limited(self, name: str, memory: int) -> bool:
        """Limit a container's memory to these bytes; return whether the engine does so.

        It refuses less than is in use now, also by a message and by pages that the kernel has not
        freed.
        """
        options = ("--memory", str(memory), "--memory-swap", str(memory))
        return self.clone.engine.run("update", *options, name, check=False).returncode == 0

    def start(self, run: str) -> None:
        self.compose("up -d --no-build", RUN=run)

    def ended(self, run: str) -> str:
        """Wait until the experiment has ended for good; return its log."""
        name = self.name("experiment")

        def over() -> bool:
            state = self.clone.engine.inspect(name)["State"]
            return state["Status"] == "exited" and not state["Restarting"]

        until(lambda: f"the end of {run}: {self.compose('logs --tail 5 experiment')}", over)
        done = self.clone.engine.run("logs", name)
        return done.stdout + done.stderr

    def healthy(self, service: str) -> None:
        def health() -> object:
            state = self.clone.engine.inspect(self.name(service))["State"]
            return state.get("Health", {}).get("Status")

        until(f"{service} to be healthy", lambda: health() == "healthy")


@pytest.fixture(scope="module")
def federation(built: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    if not on_this_machine(built.engine):
        pytest.skip("the engine's processes are not on this machine")
    built.run("docker compose --profile '*' down --volumes --timeout 5")
    work = tmp_path_factory.mktemp("faults")
    clock = compose.ROOT / "tests" / "support" / "clock"
    (work / "sitecustomize.py").write_text((clock / "sitecustomize.py").read_text())
    (work / "extra.yml").write_text(EXTRA.replace("CLOCK", str(work)))
    for path in (work, *work.iterdir()):
        path.chmod(0o755)
    absent = {f"CLIENT_{k}": "0" for k in range(2, 6)}
    files = {"COMPOSE_FILE": f"compose.yml:{work}/extra.yml", "CLIENTS": "2", "SETTINGS": SETTINGS}
    found = Federation(built, work, {**files, **absent, "OTHER_IMAGE": built.image(client=True)})
    found.compose("run --rm certs")
    try:
        found.start("undisturbed")
        log = found.ended("undisturbed")
        found.reference = found.weights("undisturbed")
        assert "completed;" in log
        yield found
    finally:
        found.compose("--profile certs down --volumes --timeout 5", check=False)


class Fault:
    """A run that is struck after round 2."""

    def __init__(self, federation: Federation, run: str, title: str) -> None:
        self.federation, self.run, self.title = federation, run, title
        for service in ("superlink", "serverapp", "client-0", "client-1"):
            federation.healthy(service)
        federation.start(run)
        until(f"round 2 of {run}", lambda: len(federation.journal(run)) > 2)
        self.struck = time.monotonic()

    def await_failure(self) -> None:
        """Wait for a failure in the journal."""

        def failed() -> bool:
            state = self.federation.clone.engine.inspect(self.federation.name("experiment"))
            assert state["State"]["Status"] != "exited", "the run ended without a failure"
            return any(entry["failures"] for entry in self.federation.journal(self.run))

        until("a failure", failed)

    def completed(
        self, seen: str, after: str = "completes", *, lost: bool = False, why: str = ""
    ) -> None:
        """Check that the run completes, and record it.

        ``lost``: client 1's replies may be lost; ``why``: part of a reason that there must be.
        """
        log = self.federation.ended(self.run)
        seconds = time.monotonic() - self.struck
        entries = self.federation.journal(self.run)
        assert "completed;" in log, log[-2000:]
        assert [entry["round"] for entry in entries] == list(range(ROUNDS + 1))
        failures = [failure for entry in entries for failure in entry["failures"]]
        assert {failure["k"] for failure in failures} <= ({1} if lost else set())
        weights = SAME if self.federation.weights(self.run) == self.federation.reference else LOST
        assert weights == (LOST if failures else SAME)
        reasons = sorted({failure["reason"] for failure in failures})
        assert why in " ".join(reasons)
        told = seen.replace("REASON", "; ".join(reasons).rstrip(".")).rstrip(" ,:")
        record(f"container-{self.run}", self.title, told, round(seconds, 1), (after, weights))


def test_the_docs_show_the_recorded_faults_of_containers() -> None:
    if not faults.RECORDED.exists():
        pytest.skip("no faults are recorded: make faults")
    recorded = json.loads(faults.RECORDED.read_text())
    if not any(name.startswith(faults.CONTAINER) for name in recorded["faults"]):
        pytest.skip("no faults of containers are recorded")
    assert markdown(faults.container_faults(recorded)) in faults.PAGE.read_text()


@faulty
def test_a_restarted_serverapp_resumes_the_run(federation: Federation) -> None:
    fault = Fault(federation, "serverapp", "ServerApp's container restarted")
    federation.docker("restart", "--time", "1", federation.name("serverapp"))
    fault.completed(
        "the service experiment ends with the reason, starts again and resumes from the checkpoint"
    )


@faulty
def test_a_restarted_superlink_loses_nothing(federation: Federation) -> None:
    fault = Fault(federation, "superlink", "SuperLink's container restarted")
    federation.docker("restart", "--time", "1", federation.name("superlink"))
    fault.completed(
        "all nodes connect again, or the service experiment resumes from the checkpoint"
    )


@faulty
def test_a_killed_client_container_restarts_as_the_same_client(federation: Federation) -> None:
    fault = Fault(federation, "killed", "client's container killed (SIGKILL)")
    name = federation.name("client-1")
    before = federation.clone.engine.inspect(name)
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    until(
        "its restart",
        lambda: federation.clone.engine.inspect(name)["RestartCount"] > before["RestartCount"],
    )
    fault.completed("it restarts; a round may go on without it: REASON", lost=True)


@faulty
def test_a_clientapp_that_needs_more_memory_than_its_limit_is_named(federation: Federation) -> None:
    fault = Fault(federation, "memory", "ClientApp killed for memory (limit of its container)")
    name = federation.name("client-1")
    idle: int = until("its memory between two messages", lambda: federation.idle(name))
    limits = itertools.count(idle, 2**20)
    until("a limit that the engine takes", lambda: federation.limited(name, next(limits)))
    try:
        fault.await_failure()
    finally:
        federation.docker("update", "--memory", "2g", "--memory-swap", "2g", name)
    seen = "rounds go on without client 1: REASON"
    fault.completed(seen, lost=True, why="ClientApp stopped responding")


@faulty
def test_a_paused_client_is_awaited(federation: Federation) -> None:
    fault = Fault(federation, "paused", "client's container paused for 20 s")
    name = federation.name("client-1")
    federation.docker("pause", name)
    try:
        time.sleep(20)
    finally:
        federation.docker("unpause", name)
    fault.completed("the round waits for client 1, REASON", lost=True)


@faulty
def test_a_client_cut_off_from_its_network_is_awaited(federation: Federation) -> None:
    fault = Fault(federation, "cut", "client's container cut off from its network for 10 s")
    name, network = federation.name("client-1"), f"{federation.clone.engine.project}_clients"
    federation.docker("network", "disconnect", network, name)
    try:
        time.sleep(10)
    finally:
        federation.docker("network", "connect", "--alias", "client-1", network, name)
    fault.completed("the round waits for client 1, REASON", lost=True)


@faulty
def test_a_full_volume_stops_the_run_until_there_is_space(federation: Federation) -> None:
    fault = Fault(federation, "full", "volume runs full")
    server = federation.name("serverapp")
    fill = "dd if=/dev/zero of=/runs/filler bs=64k 2>/dev/null || true"
    federation.docker("exec", server, "sh", "-c", fill)
    until("the refusal", lambda: "No space left on device" in federation.compose("logs experiment"))
    federation.docker("exec", server, "rm", "/runs/filler")
    federation.ended("full")
    federation.start("full")
    fault.completed(
        "the run stops: No space left on device", "with space again, up -d completes it"
    )


@faulty
def test_a_client_whose_clock_differs_is_refused_until_the_clock_is_right(
    federation: Federation,
) -> None:
    fault = Fault(federation, "clock", "client's clock two hours fast")
    (federation.work / "jump").write_text("7200")
    try:
        fault.await_failure()
        name = federation.name("client-1")

        def named() -> bool:
            done = federation.clone.engine.run("logs", name)
            return "check the clock of this machine" in done.stdout + done.stderr

        until("the reason in the client's log", named)
    finally:
        (federation.work / "jump").unlink()
    fault.completed("rounds go on without client 1: REASON; its log names the clock", lost=True)


@faulty
def test_another_version_of_the_image_is_refused_by_its_digest(federation: Federation) -> None:
    image = f"{federation.clone.image(client=True)}-other"
    recipe = OTHER.format(image=federation.clone.image(client=True))
    federation.clone.engine.run("build", "--tag", image, "-", text=recipe)
    fault = Fault(federation, "version", "new image version of one client between rounds")
    federation.compose("up -d --no-deps --no-build client-1", OTHER_IMAGE=image, RUN="version")
    fault.await_failure()
    federation.compose("up -d --no-deps --no-build client-1", RUN="version")
    fault.completed("rounds go on without client 1: REASON", lost=True)
    federation.compose("up -d --no-deps --no-build client-1", OTHER_IMAGE=image, RUN="version")
    federation.healthy("client-1")
    federation.compose("up -d --no-build", OTHER_IMAGE=image, RUN="mixed")
    log = federation.ended("mixed")
    assert "the received app bundle has the digest" in log, log[-2000:]
    record(
        *("container-mixed", "new image version of one client between two runs"),
        *("the census refuses: the received app bundle has the digest …, --app-digest is …", 0.0),
        ("stops in one line; with one version on both sides it starts", "–"),
    )
