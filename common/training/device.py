"""Choice of the device, and settings that make computation on it deterministic."""

import os
import re
from typing import TypeVar

import torch
from torch import nn

from common.settings.config import DEVICES, MemoryFormat

Net = TypeVar("Net", bound=nn.Module)

MOST_PARAMETERS = 4_000_000  #: of a network that is faster with its channels last
FEWEST_CHANNELS = 8  #: into a strided 1×1 convolution, for channels last; see ``_unsafe_last``


def choose(name: str) -> torch.device:
    """The device called ``auto | cpu | cuda | cuda:N``; ``auto`` is cuda where there is one.

    Raises ``ValueError`` if the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(DEVICES, name):
        raise ValueError(f'device = "{name}" is not allowed; allowed: auto, cpu, cuda, cuda:N')
    if name != "cpu":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(name.partition(":")[2] or 0) >= there:  # torch keeps eight bits of it
            raise ValueError(
                f'device = "{name}" is not here; this machine has {there} CUDA devices'
            )
    return torch.device(name)


def settle(threads: int) -> None:
    """Make this process deterministic: fixed thread count, deterministic kernels, no TF32.

    Sums on a CPU depend on how many threads share them, so the count is configuration.
    """
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode("warn")  # imports nothing, unlike its sibling
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def arrange(net: Net, memory_format: MemoryFormat) -> Net:
    """Lay out the network's four-dimensional weights; ``auto`` goes by their number alone.

    Measured on a CPU, one thread, batch 64, against torch's default: channels-last trains ResNet-8,
    DenseNet and MobileNetV2 1.5-1.9 times as fast and ResNet-18 0.9 times. The large networks spend
    their time in wide layers on tiny images, where there is nothing to gain, and lose in the
    update. The format decides the order of sums and with it the last bits of a result, so it may
    depend on the network and the configuration but never on the machine. Inputs may stay as they
    are.

    A network with a layer that is not safe with its channels last keeps torch's default, whatever
    the configuration says.
    """
    parameters = sum(parameter.numel() for parameter in net.parameters())
    last = memory_format == "channels-last" or (
        memory_format == "auto" and parameters < MOST_PARAMETERS
    )
    if last and not any(_unsafe_last(module) for module in net.modules()):
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def _unsafe_last(module: nn.Module) -> bool:
    """Whether the gradient of this layer is written past the end of its buffer, channels last.

    oneDNN, with which torch convolves on x86 processors, does so in the kernels for AVX2 where a
    1×1 convolution has a stride and fewer than eight channels go in (its issue 6035): the process
    dies, or goes on with wrong weights. ResNet-8 at a quarter of its width has such a layer.
    """
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and max(module.stride) > 1
        and module.in_channels // module.groups < FEWEST_CHANNELS
    )


def memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes of a device's own memory, those that are free and all; None: it has none of its own."""
    return torch.cuda.mem_get_info(device.index or 0) if device.type == "cuda" else None


def limit(device: torch.device, share: float) -> None:
    """From now on tensors of this process take at most this part of the device's memory, in (0, 1].

    An allocation beyond it raises ``torch.OutOfMemoryError``; other processes keep theirs.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device.index or 0)
