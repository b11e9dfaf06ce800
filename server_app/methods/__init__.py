"""The server halves, one file per method, found by its name: that of its contract."""

from __future__ import annotations

from common import methods
from common.config import MethodOptions
from common.protocol import Up
from common.task import Task
from server_app.combine.across import Layerwise, Same
from server_app.combine.oca import Oca
from server_app.combine.width import Width
from server_app.global_model import Combining
from server_app.method import Method

ACROSS: dict[str, type[Layerwise | Same | Width]] = {
    "layerwise": Layerwise,
    "same": Same,
    "width": Width,
}
"""What goes around an averaging method, by ``average.across``."""
AnyMethod = Method[MethodOptions, Up]


def half(name: str) -> type[AnyMethod]:
    """The server half of a method that exists."""
    return methods.half(__name__, name, Method)


def make(task: Task, global_spec: str) -> AnyMethod:
    """The chosen method, in the wrappers that [average] and [oca] ask for."""
    config = task.config
    method = half(config.run.method)(task, global_spec)
    if isinstance(method, Combining) and config.average.across != "none":
        method = ACROSS[config.average.across](method)
    if isinstance(method, Combining) and config.oca.aggregate == "on":
        method = Oca(method)
    return method
