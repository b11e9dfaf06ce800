"""Choice of the device, and settings that make computation on it deterministic."""

import json
import os
import re
from typing import TypeVar

import torch
from torch import nn

from common.settings.config import DEVICES, MemoryFormat
from common.training import allocator

Net = TypeVar("Net", bound=nn.Module)

MOST_PARAMETERS = 4_000_000  #: size up to which a network is faster with channels last
FEWEST_CHANNELS = 8  #: least inputs of a strided 1×1 convolution; see ``_unsafe_last``


def choose(name: str) -> torch.device:
    """Return the device called ``auto | cpu | cuda | cuda:N``; ``auto`` prefers cuda.

    Raises ``ValueError`` if this machine does not have the device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(DEVICES, name):
        shown = json.dumps(name)
        raise ValueError(f"device = {shown} is not allowed; allowed: auto, cpu, cuda, cuda:N")
    if name != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(name.partition(":")[2] or 0) >= count:  # torch keeps eight bits of the index
            raise ValueError(
                f'device = "{name}" is not here; this machine has {count} CUDA devices'
            )
    return torch.device(name)


def settle(threads: int) -> None:
    """Make this process deterministic: fixed thread count, deterministic kernels, no TF32.

    Sums on a CPU depend on the number of threads, so the number is part of the configuration.
    Memory that a training step frees stays in this process for the next step.
    """
    allocator.set_thresholds(allocator.COMPUTING)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode("warn")  # imports nothing, unlike its sibling
    # no network reads memory that it has not written, and to fill it costs up to a tenth
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def arrange(net: Net, memory_format: MemoryFormat) -> Net:
    """Lay out the network's four-dimensional weights; ``auto`` decides by the network's size.

    Measured on a CPU, one thread, batch 64, against torch's default: channels-last trains ResNet-8,
    DenseNet and MobileNetV2 1.5-1.9 times as fast and ResNet-18 0.9 times. Large networks spend
    their time in wide layers on tiny images, where channels-last gains nothing, and their update is
    slower. The format decides the order of sums and so the last bits of a result. It may therefore
    depend on the network and the configuration, but not on the machine. Inputs need no conversion.

    A network with a layer that is unsafe with channels last keeps torch's default in any case.
    """
    parameters = sum(parameter.numel() for parameter in net.parameters())
    last = memory_format == "channels-last" or (
        memory_format == "auto" and parameters < MOST_PARAMETERS
    )
    if last and not any(_unsafe_last(module) for module in net.modules()):
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def _unsafe_last(module: nn.Module) -> bool:
    """Return whether channels-last makes oneDNN write this layer's gradient out of bounds.

    torch uses oneDNN for convolutions on x86 processors. Its AVX2 kernels for a strided 1×1
    convolution of fewer than eight input channels have this error (oneDNN issue 6035): the process
    crashes or continues with wrong weights. ResNet-8 at a quarter of its width has such a layer.
    """
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and max(module.stride) > 1
        and module.in_channels // module.groups < FEWEST_CHANNELS
    )


def memory(device: torch.device) -> tuple[int, int] | None:
    """Return the free and the total bytes of a device's memory; None for the CPU."""
    return torch.cuda.mem_get_info(device.index or 0) if device.type == "cuda" else None


def limit(device: torch.device, share: float) -> None:
    """Limit this process's tensors to a ``share`` of the device's memory, in (0, 1].

    An allocation beyond the limit raises ``torch.OutOfMemoryError``.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device.index or 0)
