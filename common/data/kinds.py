"""Kinds of input: images (C, H, W), signals (C, T), tables (F,) and tokens of texts (T,).

Each kind is a row of ``KINDS``.

A data set declares the kind of its samples, and ``OfKind`` carries it with their shape to all that
depends on it; the kind of a plain shape follows from its number of axes, and that of a tensor from
its number type too, which tells tokens from tables. Axis 1 of a batch (n, C, ...) is the channel,
or the column of a table: each channel has one mean and one standard deviation. Tokens have none:
they are int32 numbers of a vocabulary, and 0 is the padding behind a shorter text. Code outside
``common/data``, ``common/models`` and ``common/data/noise.py`` rarely needs to compare kinds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, final

import torch
from torch import Tensor

Shape = tuple[int, ...]  #: shape of one sample: (C, H, W), (C, T), (F,) or (T,)


@final
@dataclass(frozen=True)
class Kind:
    """Kind of input: its name in ``data.kind``, the axes of a sample, and its number types."""

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    shape: str  #: text of a shape; its fields are the sizes of the axes

    def describe(self, shape: Shape) -> str:
        """Return a shape of this kind in words, such as ``signals of 6 channels × 100 steps``."""
        return self.shape.format(*shape)

    @property
    def plural(self) -> str:
        """Word for several samples, such as ``images``."""
        return f"{self.name.removesuffix('s')}s"

    @property
    def layout(self) -> str:
        """The number types and the shape of N samples, such as ``float32 (N, C, T)``."""
        types = " or ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return f"{types} ({', '.join(('N', *self.axes))})"


IMAGE = Kind("image", ("C", "H", "W"), (torch.uint8, torch.float32), "images {}×{}×{}")
SIGNAL = Kind("signal", ("C", "T"), (torch.float32,), "signals of {} channels × {} steps")
TABLE = Kind("table", ("F",), (torch.float32,), "rows of {} columns")
TOKENS = Kind("tokens", ("T",), (torch.int32,), "texts of {} tokens")
KINDS = (IMAGE, SIGNAL, TABLE, TOKENS)
BY_NAME = {kind.name: kind for kind in KINDS}
LAYOUTS = ", ".join(kind.layout for kind in KINDS)


@final
class OfKind(tuple[int, ...]):
    """Shape of one sample with its declared kind; two of different kinds are not equal.

    ``vocab``: number of different tokens, padding included; 0 for other kinds. ``every``: whether
    each token of a text has a target, the next token; else the whole sample has one.
    """

    kind: Kind
    vocab: int
    every: bool

    def __new__(
        cls, sizes: Iterable[int], kind: Kind | None = None, vocab: int = 0, every: bool = False
    ) -> Self:
        shape = super().__new__(cls, sizes)
        shape.kind, shape.vocab, shape.every = kind or of(tuple(shape)), vocab, every
        return shape

    def __getnewargs__(self) -> tuple[tuple[int, ...], Kind, int, bool]:
        return tuple(self), self.kind, self.vocab, self.every

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or not super().__eq__(other):
            return False
        same = of(other) == self.kind and vocab_of(other) == self.vocab
        return same and every_of(other) == self.every

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def of(shape: Shape) -> Kind:
    """Return the declared kind of samples of ``shape``, else that of its number of axes.

    Raises ``ValueError``, one line, for a shape of no kind.
    """
    if isinstance(shape, OfKind):
        return shape.kind
    for kind in KINDS:
        if len(kind.axes) == len(shape) and all(shape):
            return kind
    raise ValueError(f"samples of shape {shape} are of no kind; there are {LAYOUTS}")


def vocab_of(shape: Shape) -> int:
    """Return the number of different tokens, padding included; 0 for other kinds."""
    return shape.vocab if isinstance(shape, OfKind) else 0


def every_of(shape: Shape) -> bool:
    """Return whether each token has a target, the next token, instead of the whole sample."""
    return isinstance(shape, OfKind) and shape.every


def of_samples(x: Tensor, declared: str = "") -> Kind:
    """Return the kind of samples x (n, ...): the ``declared`` one, else by their number type."""
    if not declared and x.dtype in TOKENS.dtypes:
        return TOKENS
    return BY_NAME.get(declared) or of(tuple(x.shape[1:]))


def zeros(n: int, shape: Shape, device: torch.device | None = None) -> Tensor:
    """Return n samples of zeros as a network takes them; tokens are 1, not padding."""
    if of(shape) is TOKENS:
        return torch.ones(n, *shape, dtype=torch.int32, device=device)
    return torch.zeros(n, *shape, device=device)


def random(n: int, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
    """Return n random samples on the CPU: normal numbers, or texts of tokens without padding."""
    if of(shape) is TOKENS:
        return torch.randint(1, vocab_of(shape), (n, *shape), generator=generator).int()
    return torch.randn(n, *shape, generator=generator)


def is_valid(x: Tensor, declared: str = "") -> bool:
    """Return whether a batch (n, ...) is as a kind wants it, or as the ``declared`` one does."""
    kinds = [kind for kind in KINDS if declared in ("", kind.name)]
    return any(x.ndim == 1 + len(kind.axes) and x.dtype in kind.dtypes for kind in kinds)


def describe(shape: Shape) -> str:
    """Return the shape of one sample in words, such as ``images 1×8×8``."""
    return of(shape).describe(shape)


def positions(x: Tensor) -> tuple[int, ...]:
    """Return the axes of a batch (n, C, ...) over which the statistics of a channel are taken."""
    return 0, *range(2, x.ndim)


def per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    """Return one float32 number per channel in a shape that broadcasts with ``like`` (n, C, ...).

    The result is (C, 1, ...) on the device of ``like``.
    """
    return _numbers(tuple(values), like.device).view(-1, *[1] * (like.ndim - 2))


@lru_cache(maxsize=64)
def _numbers(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return float32 numbers on a device, moved there once: each move would wait for it."""
    return torch.tensor(values, dtype=torch.float32, device=device)
