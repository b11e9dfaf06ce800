"""The one place that imports torchvision; everything else takes it from here.

torchvision from PyPI is built against CUDA builds of torch. Beside a CPU-only torch its compiled
operators cannot be loaded, and its import fails with ``operator torchvision::nms does not exist``
while it registers shapes for two of them. The architectures and data sets of torchvision need
neither, so the two names are declared here, when torch is CPU-only and the operators are missing.

Importing torchvision takes about a second: import this module inside the function that needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

_DECLARED: list[torch.library.Library] = []  # a declaration lives as long as its Library object


def _compiled_operators_load() -> bool:
    """Whether torchvision's own compiled operators can be loaded beside this torch."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return True  # torchvision is not installed: the import below says so
    for folder in spec.submodule_search_locations:
        for path in [*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]:
            try:
                torch.ops.load_library(str(path))
            except OSError:
                continue
            return True
    return False


def _declare() -> None:
    """Declare ``torchvision::nms`` and ``torchvision::qnms``, without implementations."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


if torch.version.cuda is None and torch.version.hip is None and not _compiled_operators_load():
    _declare()

torchvision: Any = importlib.import_module("torchvision")
importlib.import_module("torchvision.models")

__all__ = ["torchvision"]
