"""The contracts, one file per method: paper, symbols, options, messages, deviations.

A method is found by its name: ``dl-mh`` is ``dl_mh.py`` here, and its halves have the same file
name in ``server_app/methods`` and ``client_app/methods``. A contract whose half is another
method's says so with ``SERVER = "fedavg"`` or ``CLIENT = "fedprox"``, and has no such file.

A plug-in's method (``common/plugins.py``) is a package with the modules ``contract``, ``server``
and ``client``, or one module that holds all three.
"""

import functools
import importlib
import inspect
import pkgutil
import re
from types import ModuleType

from common import plugins
from common.config import SECTIONS, MethodOptions
from common.section import value_kind


@functools.cache
def names() -> tuple[str, ...]:
    """Every method's name, in alphabetical order; plug-ins left out."""
    return tuple(sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)))


def contract(name: str) -> ModuleType:
    """The contract of a method.

    Raises ``ValueError``, one line: there is none of this name, or a plug-in that is no method.
    """
    return _part(__name__, "contract", name)


def options(name: str) -> type[MethodOptions]:
    """The type of a method's own table. Raises ``ValueError`` as ``contract`` does."""
    found: type[MethodOptions] = getattr(contract(name), "Options", MethodOptions)
    if name not in names():
        _check_options(name, found)
    return found


@functools.cache
def half(package: str, name: str, kind: type) -> type:
    """The subclass of ``kind`` that a method's file in ``package`` defines, or that of the method
    whose half it shares.

    ``package``: ``server_app.methods`` or ``client_app.methods``.

    Raises ``ValueError``, one line, for a plug-in that lacks it.
    """
    side = package.partition("_")[0]
    owner = str(vars(contract(name)).get(side.upper(), name))
    module = _part(package, side, owner)
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    own = [c for c in classes if c.__module__ == module.__name__ and issubclass(c, kind)]
    if owner in names():
        assert len(own) == 1, f"{module.__name__} must define one {kind.__name__}, it has {own}"
    elif len(own) != 1 or inspect.isabstract(own[0]):
        open_ = sorted(getattr(own[0], "__abstractmethods__", ())) if len(own) == 1 else []
        lacks = f"{own[0].__name__} lacks {', '.join(open_)}" if open_ else f"it has {len(own)}"
        raise ValueError(
            f"method {owner!r}: {module.__name__} must define one whole {kind.__name__}; {lacks}"
        )
    return own[0] if owner in names() else plugins.checked(own[0])


@functools.cache
def _part(package: str, part: str, name: str) -> ModuleType:
    """The module of a method that is its ``contract``, or its ``server`` or ``client`` half."""
    if name in names():
        return importlib.import_module(f"{package}.{name.replace('-', '_')}")
    found, what = plugins.find("methods", name), f"method {name!r}"
    if found is None:
        there = plugins.choices("methods", name, names())
        raise ValueError(f'method = "{name}" is unknown; allowed: {there}')
    if not isinstance(found, ModuleType):
        raise ValueError(
            f"{what} is of type {type(found).__name__}; it should be a package with contract, "
            "server and client, or a module that holds all three"
        )
    whole = not hasattr(found, "__path__")
    return found if whole else plugins.imported(what, f"{found.__name__}.{part}")


def _check_options(name: str, found: object) -> None:
    """Raise ``ValueError``, one line, for a plug-in's settings that cannot be a table."""
    what, table = f"method {name!r}", plugins.table_of(name)
    if not (isinstance(found, type) and issubclass(found, MethodOptions)):
        raise ValueError(f"{what}: Options must be a subclass of MethodOptions")
    if table in (*names(), *SECTIONS, "node") or not re.fullmatch(r"[a-z][a-z0-9-]*", table):
        raise ValueError(
            f"{what}: its settings cannot be the table [{table}]; it should have a name that is "
            "not taken, of small letters, digits and '-'"
        )
    for field, info in found.model_fields.items():
        if info.is_required() or value_kind(info) is None:
            raise ValueError(
                f"{what}: its setting {field!r} must be a bool, int, float, str or a choice of "
                "these, with a default"
            )
    if unknown := [table for table in found.uses if table not in SECTIONS]:
        raise ValueError(f"{what} uses [{unknown[0]}]; there are: {', '.join(SECTIONS)}")
