"""Modules of the user's own: found beside an experiment file, importable, and carried along.

They are looked for in one folder (the key ``plugins``) and come last in Python's search, so that
nothing else there is ever imported in the place of an installed package. A module that is carried
takes with it what it imports from the same folder.
"""

import ast
import importlib
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from common.settings import plugins

COPIES = "plugins"  #: in a run's folder, the modules that it was made with


def look_in(folder: Path, flat: Mapping[str, object]) -> bool:
    """Make the modules in ``folder`` importable that a flat run config names; whether there are.

    Raises ``ValueError``, one line, for a module that is already another one's name.
    """
    folder = folder.resolve()
    found = [root for root in plugins.roots(flat) if place_of(folder, root)]
    for root in found:
        _check_alone(folder, root)
    if not all(map(plugins.places, found)):
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return bool(found)


def carried(flat: Mapping[str, object]) -> dict[str, Path]:
    """The file or folder of every module that the run takes along, by name.

    Raises ``ValueError``, one line: a file that is not Python, or a name that is another one's.
    """
    if not flat.get("plugins"):
        return {}
    folder, found, left = Path(str(flat["plugins"])), dict[str, Path](), plugins.roots(flat)
    while left:
        root = left.pop()
        place = place_of(folder, root)
        if place is None or root in found or plugins.reserved(root):
            continue
        _check_alone(folder, root)
        found[root] = place
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            left += _imports(file)
    return found


def copy(flat: Mapping[str, object], to: Path, ends: Collection[str] = ()) -> None:
    """Put what ``carried`` finds into the folder ``to``; ``ends``: only files that end so."""

    def skipped(folder: str, names: list[str]) -> list[str]:
        files = (Path(folder, name) for name in names)
        other = [f.name for f in files if ends and f.is_file() and f.suffix not in ends]
        return [*other, *(name for name in names if name.startswith((".", "__pycache__")))]

    for place in carried(flat).values():
        target = to / place.name
        if target.exists() and target.samefile(place):
            continue
        to.mkdir(parents=True, exist_ok=True)
        if place.is_file():
            shutil.copy2(place, target)
        else:
            shutil.copytree(place, target, ignore=skipped, dirs_exist_ok=True)


def place_of(folder: Path, root: str) -> Path | None:
    """The module ``root`` in ``folder``: its file, or a folder with Python in it."""
    if (folder / root).is_dir() and any((folder / root).rglob("*.py")):
        return folder / root
    file = folder / f"{root}.py"
    return file if file.is_file() else None


def _check_alone(folder: Path, root: str) -> None:
    """Refuse a module that Python would not import from ``folder``."""
    if plugins.reserved(root):
        return  # whoever looks the name up says so
    mine = place_of(folder, root)
    if mine is None:
        return
    for theirs in plugins.places(root):
        if mine.resolve() == theirs or plugins.fingerprint(mine) == plugins.fingerprint(theirs):
            continue  # this one, or the copy that an earlier run has made
        how = "start a new process" if root in sys.modules else "rename it"
        raise ValueError(f"{mine} has the name of {theirs}, which Python takes instead: {how}")


def _imports(file: Path) -> Iterator[str]:
    """The top names that a file imports, wherever in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # whoever imports it hears of it; a run that does not needs nothing of it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
