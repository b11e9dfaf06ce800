"""The contracts, one file per method: paper, symbols, options, messages, deviations.

The name of a method names its files: the contract of ``dl-mh`` is ``dl_mh.py`` in this folder. Its
server and client halves have the same file name in ``server_app/methods`` and
``client_app/methods``. A contract that reuses a half of another method has no such file; it sets
``SERVER = "fedavg"`` or ``CLIENT = "fedprox"``.

A method in a plug-in (``common/settings/plugins.py``) is a package with the modules ``contract``,
``server`` and ``client``, or one module that contains all three.
"""

import functools
import importlib
import inspect
import json
import pkgutil
import re
from abc import ABC
from types import ModuleType

from common.settings import plugins
from common.settings.config import SECTIONS, MethodOptions
from common.settings.facts import Facts
from common.settings.section import value_kind


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all built-in methods in alphabetical order, without plug-ins."""
    return tuple(sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)))


def contract(name: str) -> ModuleType:
    """Return the contract module of a method.

    Raises a one-line ``ValueError`` for an unknown name or a plug-in that is not a method.
    """
    return _module(__name__, "contract", name)


def options(name: str) -> type[MethodOptions]:
    """Return the class of a method's options table. Raises ``ValueError`` as ``contract`` does."""
    table: type[MethodOptions] = getattr(contract(name), "Options", MethodOptions)
    if name not in names():
        _check_options(name, table)
    return table


def facts(name: str) -> Facts:
    """Return the facts of a method; of a plug-in those that its own options class declares."""
    table = options(name)
    return table.facts if name in names() or "facts" in vars(table) else Facts()


@functools.cache
def half(package: str, name: str, kind: type) -> type:
    """Return the subclass of ``kind`` in the method's module of ``package``.

    ``package``: ``server_app.methods`` or ``client_app.methods``. A method that reuses the half of
    another method gets the class of that method. Base classes, which name ``ABC``, do not count.

    Raises a one-line ``ValueError`` for a plug-in without this class.
    """
    side = package.partition("_")[0]
    owner = str(vars(contract(name)).get(side.upper(), name))
    module = _module(package, side, owner)
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    own = [c for c in classes if c.__module__ == module.__name__ and ABC not in c.__bases__]
    halves = [c for c in own if issubclass(c, kind)]
    if owner in names():
        assert len(halves) == 1, f"{module.__name__} must define one {kind.__name__}: {halves}"
    elif len(halves) != 1 or inspect.isabstract(halves[0]):
        count = len(halves)
        open_ = sorted(getattr(halves[0], "__abstractmethods__", ())) if count == 1 else []
        lacks = f"{halves[0].__name__} lacks {', '.join(open_)}" if open_ else f"it has {count}"
        raise ValueError(
            f"method {owner!r}: {module.__name__} must define one complete {kind.__name__}; {lacks}"
        )
    return halves[0] if owner in names() else plugins.checked(halves[0])


@functools.cache
def _module(package: str, role: str, name: str) -> ModuleType:
    """Return the module with a method's ``contract``, ``server`` half or ``client`` half."""
    if name in names():
        return importlib.import_module(f"{package}.{name.replace('-', '_')}")
    module, what = plugins.find("methods", name), f"method {name!r}"
    if module is None:
        allowed, shown = plugins.choices("methods", name, names()), json.dumps(name)
        raise ValueError(f"method = {shown} is unknown; allowed: {allowed}")
    if not isinstance(module, ModuleType):
        raise ValueError(
            f"{what} is of type {type(module).__name__}; it should be a package with contract, "
            "server and client, or a module that holds all three"
        )
    is_package = hasattr(module, "__path__")
    return plugins.imported(what, f"{module.__name__}.{role}") if is_package else module


def _check_options(name: str, options: object) -> None:
    """Raise a one-line ``ValueError`` if the options of a plug-in cannot be a settings table."""
    what, table = f"method {name!r}", plugins.table_of(name)
    if not (isinstance(options, type) and issubclass(options, MethodOptions)):
        raise ValueError(f"{what}: Options must be a subclass of MethodOptions")
    if table in (*names(), *SECTIONS, "node") or not re.fullmatch(r"[a-z][a-z0-9-]*", table):
        raise ValueError(
            f"{what}: its settings cannot be the table [{table}]; it should have a name that is "
            "not taken, of small letters, digits and '-'"
        )
    for field, info in options.model_fields.items():
        if info.is_required() or value_kind(info) is None:
            raise ValueError(
                f"{what}: its setting {field!r} must be a bool, int, float, str or a choice of "
                "these, with a default"
            )
    if unknown := [table for table in options.uses if table not in SECTIONS]:
        raise ValueError(f"{what} uses [{unknown[0]}]; there are: {', '.join(SECTIONS)}")
