"""Tasks, clients and server halves without a run, for tests with numbers computed by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from common.data.embedded import toy
from common.exchange.protocol import ClientInfo
from common.parse import parse
from common.settings.version import code_version
from common.training.task import Task, global_spec
from server_app.messaging.census import check_together, why_not
from server_app.method import Client
from server_app.methods import AnyMethod, make
from server_app.stopped import Stopped
from tests.support.tiny import flat

_CONFIG = parse(flat(Path("unused")))
TASK = Task((1, 8, 8), ("a", "b", "c"), (0.5,), (0.25,), _CONFIG, torch.device("cpu"))
"""A task of three classes."""


def learner(**more: Any) -> Any:
    """Return what a client half asks of its participant for the loss of one class a sample."""
    return SimpleNamespace(loss=F.cross_entropy, class_weights=None, **more)


def task(**changes: Any) -> Task:
    """Return the tiny run's task on the data set ``toy``."""
    config = parse(flat(changes.pop("folder", Path("nowhere")), **changes))
    return Task.of(config, toy(), torch.device("cpu"))


def server(**changes: Any) -> Any:
    """Return a method's server half, made as the ServerApp makes it."""
    ours = task(**changes)
    method: AnyMethod = make(ours, global_spec(ours))
    return method


def info(**changes: Any) -> ClientInfo:
    """Return the census reply of an honest client 0 with ``changes``."""
    fields: dict[str, Any] = {
        **{"experiment": "e", "k": 0, "n": 5, "n_test": 0, "model": "mlp", "classes": [0]},
        **{"counts": None, "task": TASK.fingerprint, "public": "p", "version": code_version()},
    }
    return ClientInfo(**{**fields, **changes})


def client(k: int = 0, n: int = 10, **changes: Any) -> Client:
    """Return client k with n samples, at node k + 1."""
    return Client(info(k=k, n=n, **changes), k + 1)


def check_peers(
    infos: Sequence[ClientInfo], size: int, experiment: str, task: Task, max_samples: int = 2**40
) -> None:
    """Raise ``Stopped`` unless ``infos`` are of clients 0 … size−1 of this experiment and task."""
    check_together(infos)
    for info in infos:
        if why := why_not(info, size, experiment, task, max_samples):
            raise Stopped(f"census: {why}")
