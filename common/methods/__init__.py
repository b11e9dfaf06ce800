"""The contracts, one file per method: paper, symbols, options, messages, deviations.

A method is found by its name: ``dl-mh`` is ``dl_mh.py`` here, and its halves have the same file
name in ``server_app/methods`` and ``client_app/methods``. A contract whose half is another
method's says so with ``SERVER = "fedavg"`` or ``CLIENT = "fedprox"``, and has no such file.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from common.config import MethodOptions


@functools.cache
def names() -> tuple[str, ...]:
    """Every method's name, in alphabetical order."""
    return tuple(sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)))


def contract(name: str) -> ModuleType:
    """The contract of a method that exists."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def options(name: str) -> type[MethodOptions]:
    """The type of a method's own table."""
    found: type[MethodOptions] = contract(name).Options
    return found


def half(package: str, name: str, kind: type) -> type:
    """The subclass of ``kind`` that a method's file in ``package`` defines, or that of the method
    whose half it shares.

    ``package``: ``server_app.methods`` or ``client_app.methods``.
    """
    side = "SERVER" if package.startswith("server") else "CLIENT"
    owner = str(vars(contract(name)).get(side, name)).replace("-", "_")
    module = importlib.import_module(f"{package}.{owner}")
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    own = [c for c in classes if issubclass(c, kind) and c.__module__ == module.__name__]
    assert len(own) == 1, f"{module.__name__} must define one {kind.__name__}, it has {own}"
    return own[0]
