"""Tasks and server halves without a run, for tests with numbers computed by hand."""

from pathlib import Path
from typing import Any

import torch

from common.data.embedded import toy
from common.settings.parse import parse
from common.training.task import Task, global_spec
from server_app.method import Client
from server_app.methods import AnyMethod, make
from tests.support.client_info import info
from tests.support.tiny import flat


def task(**changes: Any) -> Task:
    """Return the tiny run's task on the data set ``toy``."""
    config = parse(flat(changes.pop("folder", Path("nowhere")), **changes))
    return Task.of(config, toy(), torch.device("cpu"))


def server(**changes: Any) -> Any:
    """Return a method's server half, made as the ServerApp makes it."""
    ours = task(**changes)
    method: AnyMethod = make(ours, global_spec(ours))
    return method


def client(k: int = 0, n: int = 10, **changes: Any) -> Client:
    """Return client k with n samples, at node k + 1."""
    return Client(info(k=k, n=n, **changes), k + 1)
