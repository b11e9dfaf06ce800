"""Find the user's modules next to an experiment file, make them importable and ship them.

The key ``plugins`` names their folder. It is the last entry of ``sys.path``, so that no other file
in it replaces an installed package. A shipped module includes the modules that it imports from the
same folder.
"""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from common import keys
from common.settings import plugins

COPIES = "plugins"  #: subfolder of a run's folder with copies of its modules


def look_in(folder: Path, flat: Mapping[str, object]) -> bool:
    """Make the modules of a flat run config in ``folder`` importable; return whether it has any.

    Raises ``ValueError``, one line, for a module with the name of another module.
    """
    folder = folder.resolve()
    roots = [root for root in keys.roots(flat) if place_of(folder, root)]
    for root in roots:
        _check_alone(folder, root)
    if not all(map(plugins.places, roots)):
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return bool(roots)


@final
@dataclass(frozen=True)
class UserModules:
    """The user's modules that are shipped with a run: the file or folder of each, by name."""

    places: Mapping[str, Path]

    @classmethod
    def of(cls, flat: Mapping[str, object]) -> UserModules:
        """Find the modules that a flat run config names, and those that they import.

        Raises ``ValueError``, one line, for a module with the name of another module.
        """
        if not flat.get("plugins"):
            return cls({})
        folder, places, left = Path(str(flat["plugins"])), dict[str, Path](), keys.roots(flat)
        while left:
            root = left.pop()
            place = place_of(folder, root)
            if place is None or root in places or plugins.reserved(root):
                continue
            _check_alone(folder, root)
            places[root] = place
            for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
                left += _imports(file)
        return cls(places)

    def __bool__(self) -> bool:
        return bool(self.places)

    def copy(self, to: Path, ends: Collection[str] = ()) -> None:
        """Copy the modules to the folder ``to``; ``ends``: only files with these suffixes."""

        def skipped(folder: str, names: list[str]) -> list[str]:
            files = (Path(folder, name) for name in names)
            other = [f.name for f in files if ends and f.is_file() and f.suffix not in ends]
            return [*other, *(name for name in names if name.startswith((".", "__pycache__")))]

        for place in self.places.values():
            target = to / place.name
            if target.exists() and target.samefile(place):
                continue
            to.mkdir(parents=True, exist_ok=True)
            if place.is_file():
                shutil.copy2(place, target)
            else:
                shutil.copytree(place, target, ignore=skipped, dirs_exist_ok=True)


def place_of(folder: Path, root: str) -> Path | None:
    """Return the file of the module ``root`` in ``folder``, or its folder with Python files."""
    if (folder / root).is_dir() and any((folder / root).rglob("*.py")):
        return folder / root
    file = folder / f"{root}.py"
    return file if file.is_file() else None


def _check_alone(folder: Path, root: str) -> None:
    """Raise ``ValueError`` for a module that Python imports from another place than ``folder``."""
    if plugins.reserved(root):
        return  # the lookup of the name raises the error
    path = place_of(folder, root)
    if path is None:
        return
    for other in plugins.places(root):
        if path.resolve() == other or plugins.fingerprint(path) == plugins.fingerprint(other):
            continue  # the same module, or a copy in the folder of an earlier run
        how = "start a new process" if root in sys.modules else "rename it"
        raise ValueError(f"{path} has the name of {other}, which Python imports instead: {how}")


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level names of all imports in a file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # its import raises the error; a run without that import does not need the file
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
