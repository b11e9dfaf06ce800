"""Record a function's calls: arguments, results, or the line with which a call is refused."""

from collections.abc import Callable
from typing import Any

import pytest


def record_calls(
    patch: pytest.MonkeyPatch, owner: Any, name: str, note: Any = lambda result, *_, **__: result
) -> list[Any]:
    """Return a list that gets ``note(result, *arguments)`` for each call of ``owner.name``."""
    real, notes = getattr(owner, name), list[Any]()

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        notes.append(note(result, *args, **kwargs))
        return result

    patch.setattr(owner, name, noting)
    return notes


def refusal(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """Return the one line of the ``ValueError`` that a call raises."""
    with pytest.raises(ValueError) as refused:
        call(*args, **kwargs)
    assert "\n" not in str(refused.value)
    return str(refused.value)
