"""Record arguments and results of a function's calls."""

from collections.abc import Callable
from typing import Any

import pytest


def record_calls(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    note: Callable[..., Any] = lambda result, *args, **kwargs: result,
) -> list[Any]:
    """Return a list that gets ``note(result, *arguments)`` for each call of ``owner.name``."""
    real, notes = getattr(owner, name), list[Any]()

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        notes.append(note(result, *args, **kwargs))
        return result

    patch.setattr(owner, name, noting)
    return notes
