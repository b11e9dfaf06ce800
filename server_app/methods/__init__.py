"""The server halves, one file per method, found by its name: that of its contract."""

from typing import Any

from common import methods
from common.exchange.protocol import Reply
from common.settings.config import MethodOptions
from common.training.task import Task
from server_app.aggregation.across import Same
from server_app.aggregation.cached import Oca
from server_app.aggregation.depth import Depth
from server_app.aggregation.width import Width
from server_app.global_model import Averaged
from server_app.method import Method

AnyMethod = Method[MethodOptions, Reply]
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
