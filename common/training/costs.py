"""Deterministic costs of computation: floating-point operations and peak memory.

Operations are those of matrix products and convolutions, forward and backward; a multiplication and
an addition count as two. Element-wise operations (activations, normalisation, the optimiser's step)
are not counted. ``common/training/operations.py`` has the formulas.

Peak memory is the largest number of bytes that tensors occupy at once, on any device. It includes
tensors that were created in a block and still exist: weights, activations that autograd keeps,
gradients, the optimiser's moments, batches. It excludes scratch space inside an operation and
tensors from before the block.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.training import operations

FLOPS, MEMORY = "flops", "memory"  #: among a client's metrics, the latter in bytes


@final
class Flops(TorchDispatchMode):
    """Counter of the operations (``total``) in a ``with`` block, including autograd's backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count it if there is a formula.

        Raises ``ValueError``, one line, for an operation that cannot be counted.
        """
        named, formula = kwargs or {}, operations.formula(func.overloadpacket)
        if formula is None:
            with self:  # in inference mode composite operations arrive undivided
                result = func.decompose(*args, **named)
            if result is NotImplemented:
                operations.check_uncounted(func.name())
                result = func(*args, **named)
            return result
        result = func(*args, **named)
        self.total += int(formula(*args, **named, out_val=result))
        return result


@contextmanager
def counting(on: bool) -> Iterator[Flops]:
    """Count the operations of a block if ``on``; else the counter stays 0, at no cost."""
    counter = Flops()
    with counter if on else nullcontext():
        yield counter


@final
class Peak(TorchDispatchMode):
    """Counter of the bytes of tensors in a ``with`` block: ``now`` and at most (``most``)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count the storages of its result that no argument shares."""
        named = kwargs or {}
        there = [tensor.untyped_storage() for tensor in _tensors((args, named))]
        known = set(map(id, there))  # ``there`` keeps the storages alive, so ids stay unique
        result = func(*args, **named)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in known:
                known.add(id(storage))
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return result

    def _add(self, more: int) -> None:
        self.now += more
        self.most = max(self.most, self.now)


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


@contextmanager
def following(on: bool) -> Iterator[Peak]:
    """Measure the peak memory of a block if ``on``; else the counter stays 0, at no cost."""
    peak = Peak()
    with peak if on else nullcontext():
        yield peak
