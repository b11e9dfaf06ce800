"""A copy of the project in a folder, in which the steps of docs/docker*.md run as written."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from deploy.flower.processes import free_ports
from tests.support import compose
from tests.support.commandline import Done
from tests.support.engine import Engine

PAGES = sorted((compose.ROOT / "docs").glob("docker*.md"))
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "results", ".env", "keys")


@dataclass
class Clone:
    """The project in ``folder``; ``variables``: the environment of all its commands."""

    engine: Engine
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    said: str = ""  #: what the first steps printed

    def __post_init__(self) -> None:
        for name in (*(name for name, _ in compose.copied()), ".dockerignore", "deploy"):
            source, target = compose.ROOT / name, self.folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=LEFT_OUT, dirs_exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        self.variables |= {"PORT": str(free_ports(1)[0]), "HEALTH_INTERVAL": "5s"}
        if not self.engine.own:  # nothing of the machine's own federation is touched
            self.variables["COMPOSE_PROJECT_NAME"] = self.engine.project
            self.variables["IMAGE"] = f"{self.engine.project}:cpu"
            self.variables["CLIENT_IMAGE"] = f"{self.engine.project}-client:cpu"

    @property
    def docker(self) -> Path:
        """The folder of the compose files."""
        return self.folder / "deploy" / "docker"

    def image(self, client: bool = False) -> str:
        """Return the name of the built image."""
        name = "CLIENT_IMAGE" if client else "IMAGE"
        return self.variables.get(name, f"fedmosaic{'-client' if client else ''}:cpu")

    def volume(self, name: str) -> str:
        """Return the engine's name of a volume of ``compose.yml``."""
        return f"{self.engine.project}_{name}"

    def run(
        self, script: str, place: Path | None = None, *, check: bool = True, **variables: str
    ) -> Done:
        """Run lines of the page in ``place``, by default the folder of the compose files."""
        text = script
        if not self.engine.own:
            text = re.sub(r"\bfedmosaic_(?=[a-z$])", f"{self.engine.project}_", text)
            text = text.replace("fedmosaic-client:cpu", self.image(client=True))
            text = text.replace("fedmosaic:cpu", self.image())
        more = {**self.variables, **variables}
        return self.engine.shell(text, place or self.docker, check=check, **more)

    def container(self, service: str, project: str = "") -> str:
        """Return the id of the first container of a service, running or not."""
        labels = [f"project={project or self.engine.project}", f"service={service}"]
        filters = [f"label=com.docker.compose.{label}" for label in labels]
        words = [word for label in filters for word in ("--filter", label)]
        return self.engine.run("ps", "--all", "--quiet", *words).stdout.split()[0]


def steps(heading: str) -> list[str]:
    """Return the blocks of commands under a heading of the pages on containers."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return [block for block in re.findall(r"^```\n(.*?)^```", section, re.M | re.S)]
