"""What comes from elsewhere: installed plug-ins, and modules of the user's own.

Wherever the run config names a data set, a partition, a model, a method or a tracker, the name is
one of ours, that of an entry point of the group ``fedmosaic.<kind>``, or ``module:attribute``.
Ours come first, so no package that happens to be installed changes what a name means.
"""

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from common import errors

K = TypeVar("K")

WORDS = {
    "datasets": "data set",
    "partitions": "partition",
    "models": "model",
    "methods": "method",
    "trackers": "tracker",
}
"""The kinds, and what one of each is called."""
KEYS = {
    "method": "methods",
    "fleet": "models",
    "global-model": "models",
    "data.name": "datasets",
    "data.partition": "partitions",
    "track": "trackers",
}
"""The keys of the run config whose values are names, and ``node.K.model``."""
FAMILIES = ("torchvision", "timm")
"""Before the colon of a model they are no modules but whose list the name is from."""
OURS = frozenset({"common", "server_app", "client_app", "deploy", "fedmosaic", "__main__"})
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_REFERENCE = re.compile(f"{_DOTTED}:{_DOTTED}", re.ASCII)


def installed(kind: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a kind by name; several where packages offer the same name."""
    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=f"fedmosaic.{kind}"), key=lambda point: point.name):
        found.setdefault(point.name, []).append(point)
    return found


def find(kind: str, name: str) -> object | None:
    """What a name that is not ours stands for; None if there is no plug-in of that name.

    Raises ``ValueError``, one line: a module that is not there or cannot be imported, an attribute
    that it does not have, a name that two packages offer.
    """
    what = f"{WORDS[kind]} {name!r}"
    reference = _reference(kind, name)
    if reference is None:
        return None
    module, _, attribute = reference.partition(":")
    found: object = imported(what, module)
    for part in filter(None, attribute.split(".")):
        found = _attribute(what, found, part)
    return found


def imported(what: str, name: str) -> ModuleType:
    """The module ``name``, which ``what`` needs.

    Raises ``ValueError``, one line, if it is not there or cannot be imported.
    """
    root = name.partition(".")[0]
    if reserved(root):
        whose = "fedmosaic's" if root in OURS else "Python's"
        raise ValueError(f"{what}: {root!r} is not allowed; it is {whose} own name")
    errors.PLUGINS.add(root)
    try:
        module = importlib.import_module(name)
        digest(root)  # as of now: a file that is changed later is not what runs here
        return module
    except (Exception, SystemExit) as error:  # whatever the plug-in's author did
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ValueError(f"{what}: no module named {missing!r}") from None
        said = errors.line(error, typed=True)
        raise ValueError(f"{what}: module {name!r} cannot be imported: {said}") from error


def checked(kind: type[K]) -> type[K]:
    """Return a plug-in's class whose methods' replies are checked against its base class of ours.

    A method that overrides one of ours then raises ``ValueError``, one line, for a reply of another
    type than ours promises.
    """
    hooks: dict[str, object] = {}
    for name in dir(kind):
        found = [base for base in kind.__mro__ if name in vars(base)]
        ours = [base for base in found if not errors.of_plugin(base.__module__)]
        if ours and ours[0] is not found[0]:
            hook, promised = vars(found[0])[name], vars(ours[0])[name]
            if inspect.isfunction(hook) and inspect.isfunction(promised):
                hooks[name] = _checked(hook, promised)
    if not hooks:
        return kind
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    make: Any = type(kind)  # a class that has abstract methods has another type than type
    return cast("type[K]", make(kind.__name__, (kind,), {**hooks, **about}))


def _checked(hook: Callable[..., object], promised: Callable[..., object]) -> Callable[..., object]:
    """Return ``hook`` with a check of its reply."""
    kind = get_type_hints(promised).get("return", Any)
    if kind is type(None):
        return hook

    @functools.wraps(hook)
    def call(*given: object, **named: object) -> object:
        reply = hook(*given, **named)
        if (wrong := _misfit(reply, kind)) is not None:
            field, value, should = wrong
            field = f"has the field {field!r} that" if field else ""
            is_ = f"{field} is of type {type(value).__name__}".strip()
            raise ValueError(f"the reply {is_}; it should be {should}{errors.at(hook)}")
        return reply

    return call


def _misfit(value: object, kind: Any, field: str = "") -> tuple[str, object, str] | None:
    """Return the first field of ``value`` that is not of its type, its value, and the type."""
    kind = kind.__bound__ if isinstance(kind, TypeVar) else kind
    origin, parts = get_origin(kind) or kind, get_args(kind)
    should = kind.__name__ if isinstance(kind, type) and not parts else str(kind)
    wrong = (field, value, re.sub(r"\b(\w+\.)+", "", should))
    if origin in (Union, UnionType):
        return wrong if all(_misfit(value, part) for part in parts) else None
    if not isinstance(origin, type):  # such as Any
        return None
    if not isinstance(value, (int, float) if origin is float else origin):
        return wrong
    within: Iterable[tuple[object, object]] = ()
    if parts and isinstance(value, Mapping):
        within = value.items()
    elif parts and isinstance(value, list):
        within = enumerate(value)
    found = (_misfit(part, parts[-1], f"{field}.{name}".lstrip(".")) for name, part in within)
    return next((each for each in found if each), None)


def reserved(root: str) -> bool:
    """Whether no plug-in's module can have this name: it is Python's or fedmosaic's own."""
    return root in OURS or root in sys.stdlib_module_names


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'fedavg'?`` where something known is like ``name``; else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def choices(kind: str, name: str, ours: Iterable[str]) -> str:
    """Ours and the installed ones, and which of them is nearest to ``name``, which is none."""
    known = [*ours, *installed(kind)]
    return f"{', '.join(known)}{nearest(name, known)}"


def named(flat: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(kind, name) of everything that a flat run config names; models without a width factor."""
    for key, value in flat.items():
        kind = "models" if re.fullmatch(r"node\.\d+\.model", key) else KEYS.get(key)
        for name in str(value).split(",") if kind else ():
            if name := name.strip().partition("@")[0]:
                yield str(kind), name


def roots(flat: Mapping[str, object]) -> list[str]:
    """The top modules of the ``module:attribute`` names in a flat run config, each once."""
    found = [name for _, name in named(flat) if is_reference(name) and _REFERENCE.fullmatch(name)]
    return list(dict.fromkeys(re.split("[.:]", name)[0] for name in found))


def is_reference(name: str) -> bool:
    """Whether a name is ``module:attribute``, and not of a family of models."""
    module, colon, _ = name.partition(":")
    return bool(colon) and module not in FAMILIES


def table_of(method: str) -> str:
    """The name of a method's own table: its name, of ``module:attribute`` the last part."""
    last = re.split("[.:]", method)[-1]
    return last.replace("_", "-") if ":" in method else method


def root_of(kind: str, name: str) -> str | None:
    """The top module of a plug-in; None for what is none."""
    reference = None if name.partition(":")[0] in FAMILIES else _reference(kind, name)
    return None if reference is None else re.split("[.:]", reference)[0]


@functools.cache
def digest(root: str) -> str:
    """Return a fingerprint of a top module's sources, as they were when it was first imported.

    Raises ``ModuleNotFoundError`` if the module is not there.
    """
    if not (found := places(root)):
        raise ModuleNotFoundError(f"no module named {root!r}")
    return fingerprint(found[0])


def places(root: str) -> list[Path]:
    """The file or the folders of a top module as Python finds it; none if it does not."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        return []
    folders = list(spec.submodule_search_locations or ())
    return [Path(place).resolve() for place in folders or [spec.origin or ""]]


def fingerprint(place: Path) -> str:
    """Eight digits over the sources of a file or folder; tests, which no bundle has, left out."""
    sha = hashlib.sha256()
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        if not re.match(r"test_|.*_test\.py$", path.name):
            sha.update(path.relative_to(place.parent).as_posix().encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:8]


def _reference(kind: str, name: str) -> str | None:
    """``module:attribute``, or a module alone; None for a name that no package offers."""
    if ":" in name:
        if not _REFERENCE.fullmatch(name):
            raise ValueError(
                f"{WORDS[kind]} {name!r} is not allowed; it should be module:attribute, names of "
                "Python with dots"
            )
        return name
    points = installed(kind).get(name, [])
    if len({point.value for point in points}) > 1:
        values = ", ".join(sorted(point.value for point in points))
        raise ValueError(
            f"{WORDS[kind]} {name!r} is what several packages offer: take one of {values}"
        )
    return points[0].value if points else None


def _attribute(what: str, found: object, part: str) -> object:
    if hasattr(found, part):
        return getattr(found, part)
    if not isinstance(found, ModuleType):
        raise ValueError(f"{what}: {type(found).__name__} has no attribute {part!r}")
    if hasattr(found, "__path__") and importlib.util.find_spec(f"{found.__name__}.{part}"):
        return imported(what, f"{found.__name__}.{part}")
    below = [info.name for info in pkgutil.iter_modules(getattr(found, "__path__", ()))]
    known = [*below, *(name for name in vars(found) if not name.startswith("_"))]
    near = nearest(part, known)
    raise ValueError(f"{what}: module {found.__name__!r} has no attribute {part!r}{near}")
