"""Server halves, one file for each method, with the same name as its contract."""

from common import methods
from common.exchange.protocol import Reply
from common.settings.config import MethodOptions
from common.training.task import Task
from server_app.method import Method

AnyMethod = Method[MethodOptions, Reply]


def half(name: str) -> type[AnyMethod]:
    """Return the server half of the method ``name``."""
    return methods.half(__name__, name, Method)


def make(task: Task, global_spec: str) -> AnyMethod:
    """Return the configured method."""
    return half(task.config.run.method)(task, global_spec)
