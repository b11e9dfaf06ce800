"""Find the user's modules next to an experiment file, make them importable and ship them.

The key ``plugins`` names their folder. It is the last entry of ``sys.path``, so that no other file
in it replaces an installed package. A shipped module includes the modules that it imports from the
same folder.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, final

from common import keys
from common.settings import plugins
from common.settings.section import Value

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
    for path, other in _others(folder, root):
        how = "start a new process" if root in sys.modules else "rename it"
        raise ValueError(f"{path} has the name of {other}, which Python imports instead: {how}")


def _others(folder: Path, root: str) -> Iterator[tuple[Path, Path]]:
    """Yield the module ``root`` of ``folder`` with each other one that Python imports instead."""
    path = None if plugins.reserved(root) else place_of(folder, root)  # its lookup is the error
    for other in plugins.places(root) if path else ():
        assert path is not None
        if path.resolve() == other or plugins.fingerprint(path) == plugins.fingerprint(other):
            continue  # the same module, or a copy in the folder of an earlier run
        yield path, other


def hidden(folder: Path, flat: Mapping[str, object]) -> bool:
    """Return whether Python imports another module for one that a run config has in ``folder``."""
    return any(True for root in keys.roots(flat) for _ in _others(folder, root))


def private(folder: Path, flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the names of modules in a run config as names of those in ``folder`` alone.

    ``lab.nets:Small`` becomes ``lab_1a2b3c4d.nets:Small``. Imports within the folder lead to its
    own modules too, so that old and new ones of the same name live in one process.
    """
    finder = next(
        (f for f in sys.meta_path if isinstance(f, _Private) and f.folder == folder), None
    )
    if finder is None:
        sys.meta_path.append(finder := _Private(folder))
    roots = [root for root in keys.roots(flat) if place_of(folder, root)]
    module = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, roots))})(?=[.:])")
    return {key: module.sub(rf"\1{finder.mark}", str(flat[key])) for key in keys.naming(flat)}


@final
class _Private(MetaPathFinder):
    """Finder of the modules in a folder by names with a mark, such as ``lab_1a2b3c4d``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, f"_{plugins.fingerprint(folder)}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of the folder is loaded; None for every other name."""
        root, *inner = fullname.split(".")
        place = place_of(self.folder, root.removesuffix(self.mark))
        if not root.endswith(self.mark) or place is None:
            return None
        if inner:
            loader: Any = self._loader  # a function that makes one is as good as a class
            finders = (FileFinder(entry, (loader, SOURCE_SUFFIXES)) for entry in path or ())
            return next(filter(None, (finder.find_spec(fullname) for finder in finders)), None)
        file = place / "__init__.py" if place.is_dir() else place
        within = [str(place)] if place.is_dir() else None
        if not file.exists():
            return self._without_file(fullname, str(place))
        return spec_from_file_location(
            fullname,
            file,
            loader=self._loader(fullname, str(file)),
            submodule_search_locations=within,
        )

    @staticmethod
    def _without_file(name: str, place: str) -> ModuleSpec:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec

    def _loader(self, name: str, path: str) -> SourceFileLoader:
        return _Loader(name, path, self)

    def imported(self, name: str, *others: Any, **named: Any) -> ModuleType:
        """Import as ``__import__`` does; names of the folder's modules get the mark."""
        root, dot, inner = name.partition(".")
        level = named.get("level", others[3] if len(others) > 3 else 0)
        if not level and place_of(self.folder, root):
            name = f"{root}{self.mark}{dot}{inner}"
        return builtins.__import__(name, *others, **named)


@final
class _Loader(SourceFileLoader):
    """Loader whose modules import by a finder's ``imported``."""

    def __init__(self, name: str, path: str, finder: _Private) -> None:
        super().__init__(name, path)
        self._import = finder.imported

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)


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
