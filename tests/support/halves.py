"""Tasks and server halves without a run, for numbers worked out by hand."""

from pathlib import Path
from typing import Any

import torch

from common.data.embedded import toy
from common.settings.parse import parse
from common.training.task import Task, global_spec
from server_app.method import Client
from server_app.methods import AnyMethod, make
from tests.support.peers import info
from tests.support.tiny import flat


def task(**changes: Any) -> Task:
    """The tiny run's task, over the toy set."""
    config = parse(flat(changes.pop("folder", Path("nowhere")), **changes))
    return Task.of(config, toy(), torch.device("cpu"))


def server(**changes: Any) -> Any:
    """A method's server half, as the ServerApp makes it."""
    ours = task(**changes)
    made: AnyMethod = make(ours, global_spec(ours))
    return made


def client(k: int = 0, n: int = 10, **changes: Any) -> Client:
    """Client k with n samples, at node k + 1."""
    return Client(info(k=k, n=n, **changes), k + 1)
