"""A task of three classes, and the census reply of an honest client."""

from pathlib import Path
from typing import Any

import torch

from common.exchange.protocol import ClientInfo
from common.settings.parse import parse
from common.settings.version import code_version
from common.training.task import Task
from tests.support.tiny import flat

TASK = Task(
    (1, 8, 8), ("a", "b", "c"), (0.5,), (0.25,), parse(flat(Path("unused"))), torch.device("cpu")
)


def info(**changes: Any) -> ClientInfo:
    """Return the census reply of client 0 with ``changes``."""
    fields: dict[str, Any] = {
        "experiment": "e",
        "k": 0,
        "n": 5,
        "n_test": 0,
        "model": "mlp",
        "classes": [0],
        "counts": None,
        "task": TASK.fingerprint,
        "public": "p",
        "version": code_version(),
    }
    return ClientInfo(**{**fields, **changes})
