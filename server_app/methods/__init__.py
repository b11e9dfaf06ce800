"""Server halves, one file for each method, with the same name as its contract."""

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
    """Return the server half of the method ``name``."""
    return methods.half(__name__, name, Method)


def make(task: Task, global_spec: str) -> AnyMethod:
    """Return the configured method, combined with the classes that [average] and [oca] need."""
    config, kind = task.config, half(task.config.run.method)
    if issubclass(kind, Averaged):
        wrappers = [ACROSS[config.average.across]] if config.average.across != "none" else []
        wrappers += [Oca] if config.oca.aggregate == "on" else []
        for wrapper in wrappers:  # its hooks call those of ``kind`` with ``super()``
            kind = type(kind.__name__, (wrapper, kind), {})
    return kind(task, global_spec)
