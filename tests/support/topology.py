"""Run the services of a compose file, each replica on its own host in network namespaces.

It implements the parts of Docker Compose that our files use: networks and their names, volumes,
users, read-only roots, dependencies and their conditions, health checks, replicas, restart
policies. It does not enforce limits of processor and memory. If ``FEDMOSAIC_IMAGE`` names the root
file system of a built image, the containers use it.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import compose, containers
from tests.support.namespaces import Host, Network

WORKDIR = "/home/fedmosaic"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
IMAGE = os.environ.get("FEDMOSAIC_IMAGE")
MAX_STARTS = 5  #: starts of one container before it counts as broken


@dataclass
class Container:
    """One replica of a service."""

    host: Host
    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    healthy: bool = False


@dataclass
class Service:
    """A service of the compose file; ``spec``: its part of ``docker-compose config``."""

    name: str
    spec: Mapping[str, Any]
    containers: list[Container] = field(default_factory=list)

    @property
    def started(self) -> bool:
        return bool(self.containers)

    @property
    def healthy(self) -> bool:
        return self.started and all(each.healthy for each in self.containers)

    @property
    def succeeded(self) -> bool:
        ended = [each.process.poll() for each in self.containers if each.process is not None]
        return self.started and ended == [0] * len(self.containers)


class Topology:
    """The services of ``model`` on ``network``; ``work``: folder of volumes, logs and project."""

    def __init__(self, model: Mapping[str, Any], network: Network, work: Path) -> None:
        self.network, self._work = network, work
        self.services = {name: Service(name, spec) for name, spec in model["services"].items()}
        self.app = work / "app"
        self._root = work / "root"
        for folder in (self.app, self._root, work / "logs"):
            folder.mkdir(parents=True)
        compose.build(self.app)
        modes = dict(compose.folders())
        for spec in model["services"].values():
            for volume in spec.get("volumes", []):
                folder = self.volume(volume["source"])
                if not folder.exists():  # owner and mode are the image's, as with an engine
                    folder.mkdir(parents=True)
                    folder.chmod(int(modes[volume["target"]], 8))
                    os.chown(folder, *map(int, spec["user"].split(":")))

    def volume(self, name: str) -> Path:
        """Return the folder of a named volume."""
        return self._work / "volumes" / name

    def run(self, name: str, patience: float = 300.0) -> None:
        """``docker compose run --rm NAME``: run one container until it ends with status 0."""
        service = self.services[name]
        container = self._create(service, 1)
        self._start(service, container)
        assert container.process is not None
        status = container.process.wait(patience)
        assert status == 0, f"{name} ended with status {status}:\n{self.tail(name)}"

    def up(
        self,
        until: str,
        patience: float,
        skip: Sequence[str] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """``docker compose up``, until the service ``until`` has ended with status 0.

        ``meanwhile`` is called repeatedly. Raises ``AssertionError`` after ``patience`` seconds, if
        a container ended that its restart policy does not restart, or after too many restarts.
        """
        deadline = time.monotonic() + patience
        waiting = {name: each for name, each in self.services.items() if name not in skip}
        watched = {  # the engine checks the others too, but no service here depends on them
            name
            for service in waiting.values()
            for name, spec in service.spec.get("depends_on", {}).items()
            if spec["condition"] == "service_healthy"
        }
        while not self.services[until].succeeded:
            for name, service in list(waiting.items()):
                if self._may_start(service):
                    for number in range(1, self._replicas(service) + 1):
                        self._start(service, self._create(service, number))
                    del waiting[name]
            for service in self.services.values():
                if service.name not in skip:
                    self._keep(service)
                if service.name in watched and service.started and not service.healthy:
                    for container in service.containers:
                        container.healthy = self.healthy(container)
            meanwhile()
            left = deadline - time.monotonic()
            assert left > 0, f"{until} has not ended:\n{self.tail()}"
            time.sleep(0.2)

    def execute(
        self, container: Container, command: Sequence[str], timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """``docker compose exec``."""
        service = self.services[container.name.rpartition("-")[0]]
        assert container.process is not None
        return containers.execute(
            container.process, command, self._env(service.spec), service.spec["user"], timeout
        )

    def healthy(self, container: Container) -> bool:
        """Return whether the container's health check succeeds now."""
        test = self.services[container.name.rpartition("-")[0]].spec["healthcheck"]["test"]
        assert test[0] == "CMD", test
        return self.execute(container, test[1:]).returncode == 0

    def tail(self, *names: str, lines: int = 25) -> str:
        """Return the ends of the logs of these services, or of all without ``names``."""
        logs = [each.log for name in names or self.services for each in self._of(name)]
        texts = [(log.stem, log.read_text(errors="replace").splitlines()) for log in logs]
        return "\n".join(f"--- {name}\n" + "\n".join(text[-lines:]) for name, text in texts)

    def _of(self, name: str) -> list[Container]:
        return self.services[name].containers

    def _replicas(self, service: Service) -> int:
        return int(service.spec.get("deploy", {}).get("replicas", service.spec.get("scale", 1)))

    def _may_start(self, service: Service) -> bool:
        for name, spec in service.spec.get("depends_on", {}).items():
            needed = self.services[name]
            if not {
                "service_started": needed.started,
                "service_healthy": needed.healthy,
                "service_completed_successfully": needed.succeeded,
            }[spec["condition"]]:
                return False
        return True

    def _create(self, service: Service, number: int) -> Container:
        name = f"{service.name}-{number}"
        on = {
            network: [service.name, *((spec or {}).get("aliases") or [])]
            for network, spec in (service.spec.get("networks") or {}).items()
        }
        host = self.network.host(name, on=on)
        container = Container(host, name, self._work / "logs" / f"{name}.log")
        service.containers.append(container)
        return container

    def files(self, spec: Mapping[str, Any]) -> containers.Files:
        """Return the file system of a service."""
        return containers.Files(
            app=self.app,
            volumes={
                each["target"]: (
                    self.volume(each["source"]),
                    bool(each.get("read_only")),
                )
                for each in spec.get("volumes", [])
            },
            tmpfs=dict(each.partition(":")[::2] for each in spec.get("tmpfs", [])),
            read_only=bool(spec.get("read_only")),
            image=Path(IMAGE) if IMAGE else None,
        )

    def start_in(
        self,
        host: Host,
        spec: Mapping[str, Any],
        command: Sequence[str],
        files: containers.Files,
        log: Path,
    ) -> subprocess.Popen[bytes]:
        """Start a command on ``host`` with the settings ``spec`` of a service."""
        return containers.start(
            host, command, files, self._env(spec), spec["user"], WORKDIR, self._root, log
        )

    def _start(self, service: Service, container: Container) -> None:
        spec = service.spec
        container.starts += 1
        container.process = self.start_in(
            container.host, spec, spec["command"], self.files(spec), container.log
        )

    def _keep(self, service: Service) -> None:
        """Restart ended containers according to the service's restart policy."""
        for container in service.containers:
            assert container.process is not None
            status = container.process.poll()
            if status is None:
                continue
            policy = service.spec.get("restart", "no").partition(":")[0]
            again = policy in ("always", "unless-stopped") or (policy == "on-failure" and status)
            assert again or not status, f"{container.name} ended:\n{self.tail(service.name)}"
            if again:
                assert container.starts < MAX_STARTS, (
                    f"{container.name} ended {MAX_STARTS} times:\n{self.tail(service.name)}"
                )
                container.healthy = False
                self._start(service, container)

    def _env(self, spec: Mapping[str, Any]) -> dict[str, str]:
        image = compose.environment()
        return {
            **image,
            "PATH": f"{image['PATH']}:{SYSTEM_PATH}",
            **({} if IMAGE else {"PYTHONPATH": "/app/deploy"}),  # an image has it installed
            **{name: str(value) for name, value in (spec.get("environment") or {}).items()},
        }
