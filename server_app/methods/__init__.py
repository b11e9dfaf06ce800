"""The server halves, one file per method, found by its name: that of its contract."""

from typing import Any

from common import methods
from common.config import MethodOptions
from common.protocol import Up
from common.task import Task
from server_app.combine.across import Same
from server_app.combine.depth import Depth
from server_app.combine.oca import Oca
from server_app.combine.width import Width
from server_app.global_model import Averaged
from server_app.method import Method

AnyMethod = Method[MethodOptions, Up]
ACROSS: dict[str, type[Averaged[Any, Any]]] = {
    "layerwise": Depth,
    "depth": Depth,
    "same": Same,
    "width": Width,
}


def half(name: str) -> type[AnyMethod]:
    """The server half of a method that exists."""
    return methods.half(__name__, name, Method)


def make(task: Task, global_spec: str) -> AnyMethod:
    """The chosen method, behind the classes that [average] and [oca] ask for."""
    config, kind = task.config, half(task.config.run.method)
    if issubclass(kind, Averaged):
        fronts = [ACROSS[config.average.across]] if config.average.across != "none" else []
        fronts += [Oca] if config.oca.aggregate == "on" else []
        for front in fronts:  # whose hooks come first, and those of ``kind`` by ``super()``
            kind = type(kind.__name__, (front, kind), {})
    return kind(task, global_spec)
