"""What our Dockerfile says: enough of its language to ask questions about this one file."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
