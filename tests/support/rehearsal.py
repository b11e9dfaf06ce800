"""The rehearsal device: it stands for a GPU in tests, and computes on the CPU.

It is torch's ``PrivateUse1`` key under the name ``rehearsal``. A tensor on it contains a CPU
tensor, and every operation computes on that, so the numbers equal the CPU's bit for bit. Like CUDA,
it refuses:

- an operation with tensors of both devices, except CPU tensors without dimensions, and CPU indices
  of device tensors; ``numpy``; writing into a tensor of the other device;
- a generator of another device than the numbers drawn.

It cannot show the limits of a GPU's memory, its own rounding and its asynchronous errors.

``with rehearsing():`` makes it the device of this process. torch's autograd counts devices at the
first backward pass, and ``device()`` must be called before. So tests on the device run in a
separate process (``--rehearsal``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, final
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from common.training import device as devices

NAME = "rehearsal"
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
COPYING = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
TOGETHER = {"aten::cat", "aten::stack"}  #: operations in which CUDA accepts no CPU tensor
Real = torch.Generator
kept: list[torch.library.Library] = []
"""Libraries, which must exist as long as their registrations."""
limits: dict[str, float] = {}  #: limits of memory by device, as set in this process


@final
class Generator(torch.Generator):
    """Generator on the device, with the numbers of a CPU generator."""

    device = property(lambda _: torch.device(NAME, 0))  # type: ignore[assignment]


@final
class Held(torch.Tensor):
    """A tensor on the device."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Held:
        tensor: Held = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.raw = raw
        return tensor

    def __init__(self, raw: Tensor) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Held({self.raw})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an ATen operation on the CPU tensors, placed on the device."""
    (name, mutates), here = _about(func), True
    seen: list[Tensor] = []
    raw_args = [_raw(value, seen) for value in args]
    raw_kwargs = {key: _raw(value, seen) for key, value in kwargs.items()}
    if name not in COPYING:
        _check(name, args, seen, mutates)
    target = kwargs.get("device")
    if target is not None:
        here, raw_kwargs["device"] = torch.device(target).type == NAME, "cpu"
    known = {id(value.raw): value for value in seen if isinstance(value, Held)}
    result = func(*raw_args, **raw_kwargs)
    for value in known.values():
        if value.raw.shape != value.shape:
            raise NotImplementedError(f"{name} resizes a tensor of {NAME}")
    return _wrapped(result, known) if here else result


def _check(name: str, args: Sequence[Any], seen: Sequence[Tensor], mutates: bool) -> None:
    strangers = [value for value in seen if not isinstance(value, Held)]
    if not strangers or len(strangers) == len(seen):
        return
    scalars = all(value.dim() == 0 for value in strangers)
    if name in INDEXING:
        allowed = isinstance(args[0], Held) and (
            len(args) < 3 or isinstance(args[2], Held) or args[2].dim() == 0
        )
    else:
        written = mutates and not isinstance(args[0], Held)
        allowed = scalars and not written and name not in TOGETHER
    if not allowed:
        shapes = [tuple(value.shape) for value in strangers]
        line = f"{name}: expected all tensors on one device, found {NAME} and cpu {shapes}"
        raise RuntimeError(line)


@cache
def _about(func: Any) -> tuple[str, bool]:
    """Return an operation's name, and whether it writes to its first argument."""
    schema = func._schema
    first = schema.arguments[0].alias_info if schema.arguments else None
    return schema.name, bool(first and first.is_write)


def _raw(value: Any, seen: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        seen.append(value)
        return value.raw if isinstance(value, Held) else value
    if isinstance(value, list | tuple):
        return type(value)([_raw(item, seen) for item in value])
    return value


def _wrapped(value: Any, known: Mapping[int, Held]) -> Any:
    if isinstance(value, Tensor):
        return known[id(value)] if id(value) in known else Held(value)
    if isinstance(value, list | tuple):
        return type(value)([_wrapped(item, known) for item in value])
    return value


@final
class Manner(TorchFunctionMode):
    """Handle functions that make tensors on the device, and check their generators."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        generator, device = kwargs.get("generator"), kwargs.get("device")
        makes = device is not None and not _tensors(args) and torch.device(device).type == NAME
        if generator is not None:
            there = args[0].device.type if _tensors(args) else NAME if makes else "cpu"
            if generator.device.type != there:
                line = f"{func.__name__}: expected a {there!r} device type for generator but found "
                raise RuntimeError(f"{line}{generator.device.type!r}")
        if not makes:
            return func(*args, **kwargs)
        tensor = func(*args, **{**kwargs, "device": "cpu"})
        return Held(tensor.detach()).requires_grad_(tensor.requires_grad)


def _tensors(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], Tensor)


@cache
def device() -> torch.device:
    """Return the device, after registering it once in this process."""
    import torch._dynamo  # the first optimiser imports it, and it reads torch.Generator

    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    fallback = torch.library.Library("_", "IMPL", "PrivateUse1")

    def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
        layout = memory_format or torch.contiguous_format
        return Held(torch.empty(size, dtype=dtype, memory_format=layout, device="cpu"))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return Held(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def arange(*bounds: Any, dtype: Any = None, **_: Any) -> Tensor:  # torch's own resizes
        return Held(torch.arange(*bounds, dtype=dtype, device="cpu"))

    for overload in ("arange", "arange.start", "arange.start_step"):
        library.impl(overload, arange)
    library.impl("empty.memory_format", empty)
    library.impl("empty_strided", empty_strided)
    fallback.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs))
    kept.extend((library, fallback))
    return torch.device(NAME, 0)


def _generator(device: torch.device | str = "cpu") -> torch.Generator:
    return Generator() if torch.device(device).type == NAME else Real(device)


@contextlib.contextmanager
def rehearsing() -> Iterator[torch.device]:
    """Context in which every chosen device is the rehearsal device."""
    rehearsal = device()
    with (
        mock.patch.object(devices, "choose", lambda _: rehearsal),
        mock.patch.object(devices, "limit", lambda on, share: limits.update({str(on): share})),
        mock.patch.object(torch, "Generator", _generator),
        Manner(),
    ):
        yield rehearsal


def chosen() -> tuple[str, dict[str, float]]:
    """Return the device that this process chooses, and its memory limits."""
    return str(devices.choose("auto")), limits
