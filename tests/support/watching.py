"""Notes of what a function was given and what it returned, while it does what it always does."""

from collections.abc import Callable
from typing import Any

import pytest


def watched(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    note: Callable[..., Any] = lambda result, *given, **named: result,
) -> list[Any]:
    """Return a list that gets ``note(result, *arguments)`` for each call of ``owner.name``."""
    real, notes = getattr(owner, name), list[Any]()

    def noting(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        notes.append(note(result, *given, **named))
        return result

    patch.setattr(owner, name, noting)
    return notes
