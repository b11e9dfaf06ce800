"""Networks without values, on torch's device ``meta``: only shapes and dtypes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_})
"""What initialisation calls. On ``meta`` drawing from a normal distribution imports 800 modules of
torch's decompositions, which takes more than a second."""


@final
class _Unfilled(TorchFunctionMode):
    """Mode in which tensors on ``meta`` are not initialised."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_values() -> Iterator[None]:
    """Build networks on torch's device ``meta``, without initialising them."""
    with torch.device("meta"), _Unfilled():
        yield
