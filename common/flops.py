"""Floating-point operations: a cost of computation that is the same in every run.

Those of matrix products and convolutions, forward and backward; a multiplication and an addition
are two. What is done element by element (activations, normalisation, the optimiser's step) is not
counted. The formulas are torch's (``torch.utils.flop_counter``).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

NAME = "flops"  #: among a client's metrics


@final
class Flops(TorchDispatchMode):
    """Counts, in ``total``, inside its ``with`` block and in what autograd runs for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do as told, and count it where there is a formula."""
        named, formula = kwargs or {}, flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:  # in inference mode operations arrive whole that have parts to count
                parts = func.decompose(*args, **named)
            return func(*args, **named) if parts is NotImplemented else parts
        result = func(*args, **named)
        self.total += int(formula(*args, **named, out_val=result))
        return result


@contextmanager
def counting(on: bool) -> Iterator[Flops]:
    """What the block costs, if ``on``; else 0, at no cost."""
    counter = Flops()
    with counter if on else nullcontext():
        yield counter
