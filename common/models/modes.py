"""Train and eval modes that come back as they were, module by module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put every module's train or eval mode back at the end, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
