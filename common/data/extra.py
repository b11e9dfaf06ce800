"""Packages that only some data need: imported when they are asked for, or named if they are not
there.
"""

from __future__ import annotations

import importlib
from typing import Any


def imported(module: str, extra: str, what: str) -> Any:
    """The module ``module`` of the optional dependencies ``extra``.

    Raises ``ValueError``, one line with the command that installs them, where it cannot be imported
    because a package is missing; ``what`` needs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ValueError(f"{what} needs {package}: pip install 'fedmosaic[{extra}]'") from None
