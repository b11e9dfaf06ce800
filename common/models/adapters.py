"""Low-rank adapters (LoRA): a frozen network, and trained updates of some of its layers.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. A layer with the frozen
weight W [o, i] computes with W + s B A, where A [r, i] and B [o, r] are trained:

    W x + b + s B (A dropout(x))

A is drawn from U(-1/√i, 1/√i) and B is 0, so that a new adapter changes no bit of a prediction. A
convolution with k weights in a kernel has A [r, i k], a convolution to r channels, and B [o, r],
one of kernel size 1. In this form the layers have the bits of Hugging Face's peft.

Everything of the base is frozen: its weights are buffers that a state dict does not have, so that
they neither travel nor are stored with a model, and its BatchNorm keeps its statistics. The
exception is the head for classes, labels or numbers, which is new for most tasks: it is trained
whole, as are other layers that are new (``Classifier.fresh``). The head for next tokens is the
base's.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from common import seeds
from common.models.classifier import Classifier

A, B, W = "lora_A", "lora_B", "lora_W"  #: ends of the names of an adapter's entries


@final
class Adapter(NamedTuple):
    """Settings of the adapters of all networks of a run."""

    scale: float = 2.0  #: s, the same for all ranks
    alpha: float = 0.0  #: above 0: s is alpha / r instead
    targets: tuple[str, ...] = ()  #: layers, by the ends of their names; empty: the base's usual
    dropout: float = 0.0
    base: str = ""  #: folder of the network ``base``

    def scale_of(self, rank: int) -> float:
        """Return s of an adapter of this rank."""
        return self.alpha / rank if self.alpha else self.scale


USUAL = Adapter()


class Adapted(nn.Module, ABC):
    """A frozen layer with an adapter of rank r."""

    inputs: int  #: i, of a convolution times the weights of a kernel
    outputs: int  #: o

    def __init__(self, layer: nn.Module, rank: int, adapter: Adapter) -> None:
        super().__init__()
        self.layer, self.scale = layer, adapter.scale_of(rank)
        self.register_buffer("bias", layer.bias, persistent=False)  # type: ignore[arg-type]
        self.inputs, self.outputs = self.sizes(layer)
        self.dropout = nn.Dropout(adapter.dropout)
        self.lora_A = nn.Parameter(torch.empty(rank, self.inputs))
        self.lora_B = nn.Parameter(torch.empty(self.outputs, rank))
        self.draw()

    def draw(self) -> None:
        """Draw A from torch's generator on the CPU, and set B to 0."""
        first = torch.empty(self.lora_A.shape, device="meta" if self.lora_A.is_meta else "cpu")
        with torch.no_grad():
            self.lora_A.copy_(nn.init.kaiming_uniform_(first, a=math.sqrt(5)))
            self.lora_B.zero_()

    @property
    def weight(self) -> Tensor:
        """W + s B A without dropout, for torch's attention, which reads a layer's ``weight``."""
        base = self.layer.weight
        assert isinstance(base, Tensor)
        return merged(self.layer, self.scale * (self.lora_B @ self.lora_A).view_as(base))

    @staticmethod
    def sizes(layer: nn.Module) -> tuple[int, int]:
        """Return i and o of a layer."""
        weight = layer.weight
        assert isinstance(weight, Tensor)
        return weight[0].numel(), len(weight)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result + self.up(self.down(self.dropout(x))) * self.scale

    @abstractmethod
    def down(self, x: Tensor) -> Tensor:
        """Return A x."""

    @abstractmethod
    def up(self, h: Tensor) -> Tensor:
        """Return B h."""


@final
class AdaptedLinear(Adapted):
    """A linear layer with an adapter."""

    def down(self, x: Tensor) -> Tensor:
        return F.linear(x, self.lora_A)

    def up(self, h: Tensor) -> Tensor:
        return F.linear(h, self.lora_B)


@final
class AdaptedConvolution(Adapted):
    """A convolution in one or two dimensions, without groups, with an adapter."""

    layer: nn.Conv1d | nn.Conv2d

    def down(self, x: Tensor) -> Tensor:
        layer = self.layer
        kernels = self.lora_A.view(-1, *layer.weight.shape[1:])
        how = (None, layer.stride, layer.padding, layer.dilation)
        if isinstance(layer, nn.Conv1d):
            return F.conv1d(x, kernels, *how)  # type: ignore[arg-type]
        return F.conv2d(x, kernels, *how)  # type: ignore[arg-type]

    def up(self, h: Tensor) -> Tensor:
        kernels = self.lora_B.view(*self.lora_B.shape, *[1] * (h.dim() - 2))
        return F.conv1d(h, kernels) if h.dim() == 3 else F.conv2d(h, kernels)


@final
class FrozenNorm(nn.Module):
    """BatchNorm by the statistics of the base, in training too."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        for name in ("running_mean", "running_var", "weight", "bias"):
            self.register_buffer(name, getattr(norm, name), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        result: Tensor = F.batch_norm(x, *statistics, training=False, eps=self.eps)  # type: ignore[arg-type]
        return result


@final
class Dense(nn.Module):
    """A frozen layer with a trained update of its weight, W + ΔW, at first 0."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("bias", layer.bias, persistent=False)  # type: ignore[arg-type]
        self.lora_W = nn.Parameter(torch.zeros_like(layer.weight))  # type: ignore[arg-type]

    @property
    def weight(self) -> Tensor:
        """W + ΔW."""
        return merged(self.layer, self.lora_W)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = functional_call(self.layer, {"weight": self.weight}, x)
        return result


def merged(layer: nn.Module, update: Tensor) -> Tensor:
    """Return W + ΔW of a layer."""
    assert isinstance(layer.weight, Tensor)
    return layer.weight + update


def pairs(w: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield layer, A [r, i] and B [o, r] of each adapter in a state dict."""
    for name, a in w.items():
        if name.endswith(f".{A}"):
            layer = name.removesuffix(f".{A}")
            yield layer, a, w[f"{layer}.{B}"]


def adaptations(net: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """Yield the name of each layer of ``net`` with an adapter, and the layer."""
    for name, module in net.named_modules():
        if isinstance(module, Adapted):
            yield name, module


def begin_anew(net: nn.Module, w: Mapping[str, Tensor], seed: int, *name: str | int) -> None:
    """Add the dense updates in ``w`` to the frozen layers, and draw new adapters above them.

    The weights become W + ΔW in one addition, in tensors of this network alone; B is 0, and the
    stream ``name`` gives A. Other entries of ``w``, of the head, are copied.
    """
    adapters = dict(adaptations(net))
    for layer, module in adapters.items():
        module.layer.weight = merged(module.layer, w[f"{layer}.{W}"].to(module.lora_A.device))
        with seeds.scope(seed, "adapter", layer, *name):
            module.draw()
    rest = {n: value for n, value in w.items() if not n.endswith(f".{W}")}
    net.load_state_dict(rest, strict=False)


def check_targets(nets: Iterable[nn.Module], targets: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, for a target that is a layer of none of the networks."""
    kinds = Adapted | Dense
    names = [f".{n}" for net in nets for n, m in net.named_modules() if isinstance(m, kinds)]
    for target in targets:
        if not any(name.endswith(f".{target}") for name in names):
            raise ValueError(f"adapter.targets has {target!r}, which matches no layer of the fleet")


def adapted(base: Classifier, rank: int, adapter: Adapter, seed: int, *, head: bool) -> Classifier:
    """Return a network with the tensors of ``base``, frozen, and adapters of ``rank``; 0: dense.

    It shares the tensors, so that ``base`` is in memory once. ``head``: whether the head is trained
    whole, from a copy of the base's. Every participant draws the same A from ``seed``.

    Raises ``ValueError``, one line, if no layer is a target or ``rank`` is above a layer's.
    """
    tensors = chain(base.parameters(), base.buffers())
    net = copy.deepcopy(base, {id(tensor): tensor for tensor in tensors})
    net.entries = tuple(base.state_dict())
    whole = ("head", *base.fresh)
    own = {name: copy.deepcopy(base.get_submodule(name)) for name in whole if head}
    _freeze(net)
    for name, module in own.items():
        _replace(net, name, module.requires_grad_(True))
    layers = {name: module for name, module in net.named_modules() if _can(module)}
    own_names = tuple(f"{name}." for name in whole)
    layers = {n: module for n, module in layers.items() if not f"{n}.".startswith(own_names)}
    wanted = adapter.targets or base.targets
    chosen = [n for n in layers if not wanted or any(f".{n}".endswith(f".{t}") for t in wanted)]
    if not chosen:
        targets = ",".join(wanted)
        raise ValueError(
            f"adapter.targets = {targets!r} matches no layer of {base.spec}; it has "
            f"{', '.join(layers) or 'no linear layer or convolution beside its head'}"
        )
    for name in chosen:
        layer = layers[name]
        if rank > (most := min(Adapted.sizes(layer))):
            raise ValueError(
                f"an adapter of rank {rank} is not allowed for {name} of {base.spec}, which has "
                f"rank {most} at most"
            )
        kind = AdaptedLinear if isinstance(layer, nn.Linear) else AdaptedConvolution
        with seeds.scope(seed, "adapter", name):
            _replace(net, name, kind(layer, rank, adapter) if rank else Dense(layer))
    for name, module in list(net.named_modules()):
        if isinstance(module, _BatchNorm):
            _replace(net, name, FrozenNorm(module))
    return net


def without_adapters(net: nn.Module) -> dict[str, Tensor]:
    """Return the entries of the base with what was learnt in its weights: W + s B A, or W + ΔW.

    Raises ``ValueError``, one line, for a network without adapters.
    """
    found: dict[str, Tensor] = {}
    if not isinstance(net, Classifier) or not net.entries:
        raise ValueError("the model has no adapters to merge into a base")
    for name in net.entries:
        parent, _, last = name.rpartition(".")
        value = getattr(net.get_submodule(parent), last, None)
        if isinstance(value, Tensor):  # the counters of BatchNorm are not kept
            found[name] = value.detach().cpu().clone()
    return found


def _can(module: nn.Module) -> bool:
    """Return whether a layer can have an adapter."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear)


def _freeze(net: nn.Module) -> None:
    """Make all parameters buffers, and no buffer a part of the state dict."""
    for module in net.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                del module._parameters[name]
                module.register_buffer(name, value.requires_grad_(False))
        module._non_persistent_buffers_set.update(module._buffers)


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(net.get_submodule(parent), last, module)
