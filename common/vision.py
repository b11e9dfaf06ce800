"""Import torchvision; all other modules take it from here.

torchvision from PyPI is built for CUDA builds of torch. With a CPU-only torch its compiled
operators cannot be loaded, and its import fails with ``operator torchvision::nms does not exist``
while it registers shapes for two of them. The architectures and data sets of torchvision need
neither, so the two names are declared here, without implementations, when that happens.

Importing torchvision takes about a second: import this module inside the function that needs it.
"""

import importlib
from typing import Any

import torch

declared: torch.library.Library | None = None  # the declarations exist as long as this object

try:
    torchvision: Any = importlib.import_module("torchvision")
except RuntimeError:
    if torch.version.cuda is not None or torch.version.hip is not None:
        raise
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torchvision = importlib.import_module("torchvision")
importlib.import_module("torchvision.models")

__all__ = ["torchvision"]
