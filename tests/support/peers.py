"""A task of three classes, and what an honest client says of itself."""

from pathlib import Path
from typing import Any

import torch

from common.parse import parse
from common.protocol import Peer
from common.task import Task
from common.version import code_version
from tests.support.tiny import flat

TASK = Task(
    (1, 8, 8), ("a", "b", "c"), (0.5,), (0.25,), parse(flat(Path("unused"))), torch.device("cpu")
)


def peer(**changes: Any) -> Peer:
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
    return Peer(**{**fields, **changes})
