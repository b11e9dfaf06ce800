"""State dicts in tests: those that clients kept, and what differs between two."""

from collections.abc import Callable
from typing import Any

import torch

from client_app.bases.own_model import ClientState
from common.exchange.records import StateDict
from tests.support.tiny import TinyRun


def own_models(run: TinyRun, t: int, kind: Any = ClientState, field: str = "local") -> list[Any]:
    """Return what the clients kept in round ``t``: by default their own models, as state dicts."""
    files = sorted((run.folder / "state" / "test").glob(f"*/{t}/{kind.kind}.safetensors"))
    return [getattr(kind.load(file), field) for file in files]


def same(a: Any, b: Any) -> bool:
    """Return whether two state dicts, or two lists of them, have the same keys and bits."""
    if isinstance(a, list):
        return len(a) == len(b) > 0 and all(map(same, a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def moved(before: StateDict, after: StateDict) -> float:
    """Return the largest difference of the entries of ``after`` from ``before``."""
    return max(float((before[name] - value).abs().max()) for name, value in after.items())


def put(name: str, value: torch.Tensor) -> Callable[[Any], dict[str, Any]]:
    """Return a change of a reply for ``Changing.by``: the entry ``name`` of w becomes ``value``."""
    return lambda reply: {"w": {**reply.w, name: value}}
