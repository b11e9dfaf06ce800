"""Peak memory: the most bytes that tensors take at once, the same in every run.

Counted are the tensors that are made in a block and still held, on any device: weights, activations
that autograd keeps, gradients, the optimiser's moments, batches. Scratch space inside an operation
is not, nor is what was there before the block.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAME = "memory"  #: among a client's metrics, in bytes


@final
class Peak(TorchDispatchMode):
    """Follows, inside its ``with`` block, the bytes that are ``held``, and their ``most``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do as told; what the result takes that no argument took is new."""
        named = kwargs or {}
        there = [tensor.untyped_storage() for tensor in _tensors((args, named))]
        known = set(map(id, there))  # ``there`` keeps them, so that no number is used again
        result = func(*args, **named)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in known:
                known.add(id(storage))
                self._hold(storage.nbytes())
                weakref.finalize(storage, self._hold, -storage.nbytes())
        return result

    def _hold(self, more: int) -> None:
        self.held += more
        self.most = max(self.most, self.held)


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


@contextmanager
def following(on: bool) -> Iterator[Peak]:
    """What the block holds at most, if ``on``; else 0, at no cost."""
    peak = Peak()
    with peak if on else nullcontext():
        yield peak
