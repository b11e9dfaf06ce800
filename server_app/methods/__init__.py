"""The server halves, one file per method, found by its name: that of its contract."""

from __future__ import annotations

from common import methods
from common.config import MethodOptions
from common.protocol import Up
from common.task import Task
from server_app.combine.across import Across, Layerwise, Same
from server_app.combine.oca import Oca
from server_app.combine.width import Width
from server_app.global_model import Combining, T
from server_app.method import Method, O

AnyMethod = Method[MethodOptions, Up]


def half(name: str) -> type[AnyMethod]:
    """The server half of a method that exists."""
    return methods.half(__name__, name, Method)


def make(task: Task, global_spec: str) -> AnyMethod:
    """The chosen method, in the wrappers that [average] and [oca] ask for."""
    config = task.config
    method = half(config.run.method)(task, global_spec)
    if isinstance(method, Combining) and config.average.across != "none":
        method = across(config.average.across, method)
    if isinstance(method, Combining) and config.oca.aggregate == "on":
        method = Oca(method)
    return method


def across(scheme: str, method: Combining[O, T]) -> Across[O, T]:
    """An averaging method in the wrapper of a value of ``average.across``."""
    if scheme == "width":
        return Width(method)
    return Layerwise(method) if scheme == "layerwise" else Same(method)
