"""Plug-ins: names of installed packages and of the user's modules in a run config.

The name of a data set, partition, model, method or tracker is a built-in name, an entry point of
the group ``fedmosaic.<kind>``, or ``module:attribute``. Built-in names have precedence, so an
installed package cannot change their meaning.
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
from collections.abc import Callable, Iterable, Mapping
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
    "selections": "selection",
    "callbacks": "callback",
}
"""Kinds of plug-ins, with the word for one of each kind in messages."""
ON_THE_SERVER = ("trackers", "selections", "callbacks")
"""Kinds of which clients never import one."""
FAMILIES = ("torchvision", "timm")
"""Words before the colon of a model that are not modules but libraries of models."""
OURS = frozenset({"common", "server_app", "client_app", "deploy", "fedmosaic", "__main__"})
OF_FOLDER = "base"  #: the network in the Hugging Face folder ``adapter.base``
ADAPTED = re.compile(r"(.+)-(?:lora([1-9]\d{0,4})|dense)")
"""Name of a network with adapters of a rank, or with dense updates, such as ``gpt-2-lora4``."""
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_REFERENCE = re.compile(f"{_DOTTED}:{_DOTTED}", re.ASCII)


def network(spec: str) -> str:
    """Return the name of a network without width factor and adapters."""
    name = spec.partition("@")[0]
    adapted = ADAPTED.fullmatch(name)
    return adapted[1] if adapted else name


def installed(kind: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a kind by name; several if packages offer the same name."""
    points: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=f"fedmosaic.{kind}"), key=lambda point: point.name):
        points.setdefault(point.name, []).append(point)
    return points


def find(kind: str, name: str) -> object | None:
    """Return the object of a plug-in's name; None if there is no plug-in of that name.

    Raises ``ValueError``, one line, if the module is missing or cannot be imported, if it lacks the
    attribute, or if two packages offer the name.
    """
    what = f"{WORDS[kind]} {name!r}"
    reference = _reference(kind, name)
    if reference is None:
        return None
    module, _, attribute = reference.partition(":")
    value: object = imported(what, module)
    for word in filter(None, attribute.split(".")):
        value = _attribute(what, value, word)
    return value


def imported(what: str, name: str) -> ModuleType:
    """Import and return the module ``name``; ``what`` is the plug-in in error messages.

    Raises ``ValueError``, one line, if it is missing or cannot be imported.
    """
    root = name.partition(".")[0]
    if reserved(root):
        whose = "fedmosaic's" if root in OURS else "Python's"
        raise ValueError(f"{what}: {root!r} is not allowed; it is {whose} own name")
    errors.PLUGINS.add(root)
    try:
        module = importlib.import_module(name)
        digest(root)  # cached now, because a file that changes later does not run in this process
        return module
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            where = "it should be beside the experiment file, on PYTHONPATH or installed"
            raise ValueError(f"{what}: no module named {missing!r}; {where}") from None
        why = errors.line(error, typed=True)
        raise ValueError(f"{what}: module {name!r} cannot be imported: {why}") from error


def checked(kind: type[K]) -> type[K]:
    """Return a subclass of a plug-in's class that checks the types of its methods' results.

    A method that overrides a method of our base class then raises ``ValueError``, one line, if its
    result does not have the return type of our method.
    """
    hooks: dict[str, object] = {}
    for name in dir(kind):
        bases = [base for base in kind.__mro__ if name in vars(base)]
        ours = [base for base in bases if not errors.of_plugin(base.__module__)]
        if ours and ours[0] is not bases[0]:
            hook, promised = vars(bases[0])[name], vars(ours[0])[name]
            if inspect.isfunction(hook) and inspect.isfunction(promised):
                hooks[name] = _checked(hook, promised)
    if not hooks:
        return kind
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    make: Any = type(kind)  # the type of a class with abstract methods is not ``type``
    return cast("type[K]", make(kind.__name__, (kind,), {**hooks, **about}))


def _checked(hook: Callable[..., object], promised: Callable[..., object]) -> Callable[..., object]:
    """Return ``hook`` with a check that its result has the return type of ``promised``."""
    kind = get_type_hints(promised).get("return", Any)
    if kind is type(None):
        return hook

    @functools.wraps(hook)
    def call(*args: object, **kwargs: object) -> object:
        reply = hook(*args, **kwargs)
        if (wrong := _misfit(reply, kind)) is not None:
            field, value, should = wrong
            field = f"has the field {field!r} that" if field else ""
            is_ = f"{field} is of type {type(value).__name__}".strip()
            raise ValueError(f"the reply {is_}; it should be {should}{errors.at(hook)}")
        return reply

    return call


def _misfit(value: object, kind: Any, field: str = "") -> tuple[str, object, str] | None:
    """Return name, value and type of the first field of ``value`` that does not match ``kind``."""
    kind = kind.__bound__ if isinstance(kind, TypeVar) else kind
    origin, args = get_origin(kind) or kind, get_args(kind)
    should = kind.__name__ if isinstance(kind, type) and not args else str(kind)
    wrong = (field, value, re.sub(r"\b(\w+\.)+", "", should))
    if origin in (Union, UnionType):
        return wrong if all(_misfit(value, kind_) for kind_ in args) else None
    if origin is Any or not isinstance(origin, type):  # Any is a class since Python 3.11
        return None
    if not isinstance(value, (int, float) if origin is float else origin):
        return wrong
    within: Iterable[tuple[object, object]] = ()
    if args and isinstance(value, Mapping):
        within = value.items()
    elif args and isinstance(value, list):
        within = enumerate(value)
    fields = (_misfit(item, args[-1], f"{field}.{name}".lstrip(".")) for name, item in within)
    return next(filter(None, fields), None)


def reserved(root: str) -> bool:
    """Return whether a module name is reserved because it belongs to Python or fedmosaic."""
    return root in OURS or root in sys.stdlib_module_names


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'fedavg'?`` if a known name is similar to ``name``; else ``""``."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def required(kind: str, name: str, ours: Iterable[str], what: str) -> object:
    """Return the object of a plug-in's name, as ``find`` does, but never None.

    Raises ``ValueError``, one line that begins with ``what``, if there is no plug-in of that name.
    """
    if (plugin := find(kind, name)) is None:
        raise ValueError(f"{what}: choose from {choices(kind, name, ours)}")
    return plugin


def choices(kind: str, name: str, ours: Iterable[str]) -> str:
    """Return the built-in and installed names, and the one nearest to the unknown ``name``."""
    known = [*ours, *installed(kind)]
    module, dot, attribute = name.rpartition(".")
    dotted = (
        dot and re.fullmatch(_DOTTED, name, re.ASCII) and f"; did you mean '{module}:{attribute}'?"
    )
    return f"{', '.join(known)}{dotted or nearest(name, known)}"


def top_of(name: str) -> str:
    """Return the top module of a name ``module:attribute``; empty for any other name."""
    named = is_reference(name) and _REFERENCE.fullmatch(name)
    return re.split("[.:]", name)[0] if named else ""


def is_reference(name: str) -> bool:
    """Return whether a name is ``module:attribute`` and not a model of one of the ``FAMILIES``."""
    module, colon, _ = name.partition(":")
    return bool(colon) and module not in FAMILIES


def table_of(method: str) -> str:
    """Return the name of a method's table: its name, or the last part of ``module:attribute``."""
    last = re.split("[.:]", method)[-1]
    return last.replace("_", "-") if ":" in method else method


def root_of(kind: str, name: str) -> str | None:
    """Return the top module of a plug-in; None if the name is not that of a plug-in."""
    reference = None if name.partition(":")[0] in FAMILIES else _reference(kind, name)
    return None if reference is None else re.split("[.:]", reference)[0]


@functools.cache
def digest(root: str) -> str:
    """Return a fingerprint of a top module's sources at the time of the first call.

    Raises ``ModuleNotFoundError`` if the module is missing.
    """
    if not (paths := places(root)):
        raise ModuleNotFoundError(f"no module named {root!r}")
    return fingerprint(paths[0])


def places(root: str) -> list[Path]:
    """Return the file or the folders of a top module; an empty list if Python does not find it."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        return []
    folders = list(spec.submodule_search_locations or ())
    return [Path(place).resolve() for place in folders or [spec.origin or ""]]


def fingerprint(place: Path) -> str:
    """Return eight hexadecimal digits of a hash of a file or a folder's sources.

    Tests are left out, because a bundle does not contain them.
    """
    sha = hashlib.sha256()
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        if not re.match(r"test_|.*_test\.py$", path.name):
            sha.update(path.relative_to(place.parent).as_posix().encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:8]


def _reference(kind: str, name: str) -> str | None:
    """Return ``module:attribute`` or the module of a name; None if no package offers it.

    Raises ``ValueError``, one line, for an invalid reference or a name of several packages.
    """
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
            f"{WORDS[kind]} {name!r} is offered by several packages; write one of {values}"
        )
    return points[0].value if points else None


def _attribute(what: str, owner: object, name: str) -> object:
    """Return an attribute of ``owner``, or its submodule; ``what`` is the plug-in in messages.

    Raises ``ValueError``, one line, if there is none.
    """
    if hasattr(owner, name):
        return getattr(owner, name)
    if not isinstance(owner, ModuleType):
        raise ValueError(f"{what}: {type(owner).__name__} has no attribute {name!r}")
    if hasattr(owner, "__path__") and importlib.util.find_spec(f"{owner.__name__}.{name}"):
        return imported(what, f"{owner.__name__}.{name}")
    below = [info.name for info in pkgutil.iter_modules(getattr(owner, "__path__", ()))]
    known = [*below, *(name for name in vars(owner) if not name.startswith("_"))]
    near = nearest(name, known)
    raise ValueError(f"{what}: module {owner.__name__!r} has no attribute {name!r}{near}")
