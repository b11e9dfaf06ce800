"""Federated learning in which every client brings its own model.

    import fedmosaic
    run = fedmosaic.run(method="fedkf", rounds=20, data={"alpha": 0.1})
    run.accuracy, run.journal, run.clients, run.model()

This is the installed package. The Flower app is in its subfolder ``app``, or in a parent folder in
a checkout. The app's packages have the names of Flower's bundle: ``common``, ``server_app``,
``client_app``, ``deploy``. The app's folder is the first entry of ``sys.path``, so that other
installed packages with these names are not imported instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

    from deploy.api import Run as Run
    from deploy.api import Setting as Setting
    from deploy.api import compare as compare
    from deploy.api import load as load
    from deploy.api import run as run
    from deploy.api import settings as settings
    from deploy.api import sweep as sweep

__all__ = ["Run", "Setting", "app_folder", "compare", "load", "run", "settings", "sweep"]

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE / "app" if (_HERE / "app").is_dir() else _HERE.parents[1]
_PACKAGES = ("common", "server_app", "client_app", "deploy")


def _claim_names() -> None:
    """Put the app first on ``sys.path``.

    Raises ``ImportError``, one line, if another package with one of its names has been imported.
    """
    for name in _PACKAGES:
        module = sys.modules.get(name)
        places = list(getattr(module, "__path__", None) or [getattr(module, "__file__", None)])
        if module is not None and not any(
            place and Path(place).resolve().is_relative_to(_ROOT) for place in places
        ):
            raise ImportError(
                f"fedmosaic has a package {name!r}, but another one is imported already, from "
                f"{places[0] or 'this session'}: import fedmosaic in a fresh process, and first"
            )
    sys.path[:] = [str(_ROOT), *(entry for entry in sys.path if entry != str(_ROOT))]


_claim_names()


def app_folder() -> Path:
    """Return the folder of the Flower app for ``flwr run``."""
    return _ROOT


def main() -> NoReturn:
    """Run the console script ``fedmosaic``."""
    from deploy.cli import main as command_line

    command_line()


def __getattr__(name: str) -> object:
    """Import a public name when it is first used; ``import fedmosaic`` alone loads no torch."""
    if name == "__version__":
        from common.settings.version import VERSION

        return VERSION
    if name not in __all__:
        raise AttributeError(f"module 'fedmosaic' has no attribute {name!r}")
    from deploy import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
