"""The largest entries of a network, by absolute value: which they are, and how they travel.

Names of entries are those of weights and biases of convolutions and linear layers, in the order of
the state dict; everything else of a network (normalisation, buffers) is whole.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from common.exchange.records import StateDict

Masks = dict[str, Tensor]
"""Which entries of each tensor are kept, bool of its shape."""
Groups = dict[str, list[str]]
"""Names of the tensors whose entries share a threshold."""


def entries(net: nn.Module) -> list[str]:
    """Names of the weights and biases of convolutions and linear layers."""
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [
        f"{name}.{leaf}" if name else leaf
        for name, module in net.named_modules()
        if isinstance(module, layers)
        for leaf, _ in module.named_parameters(recurse=False)
    ]


def groups(names: Sequence[str], scope: str) -> Groups:
    """One group of all (``global``), or one for each part of the network (``stage``): what stands
    before the first dot of a name, such as ``conv1``, ``layer3`` and ``head``.
    """
    found: Groups = {}
    for name in names:
        part = name.removeprefix("base.").partition(".")[0]
        found.setdefault("all" if scope == "global" else part, []).append(name)
    return found


def thresholds(w: Mapping[str, Tensor], of: Groups, size: float) -> dict[str, float]:
    """θ of each group of P entries: the ⌊size · P⌋-th largest |w|, of at least one entry."""
    found = {}
    for group, names in of.items():
        values = torch.cat([w[name].abs().flatten() for name in names])
        kept = max(int(size * len(values) + 1e-9), 1)
        found[group] = float(values.kthvalue(len(values) - kept + 1).values)
    return found


def by_name(theta: Mapping[str, float], of: Groups) -> dict[str, float]:
    """The threshold of each tensor."""
    return {name: theta[group] for group, names in of.items() for name in names}


def masks(w: Mapping[str, Tensor], theta: Mapping[str, float]) -> Masks:
    """m = 1(|w| ≥ θ), ties kept; ``theta`` by tensor."""
    return {name: w[name].abs() >= least for name, least in theta.items()}


def kept(w: Mapping[str, Tensor], of: Masks) -> Tensor:
    """The kept entries [K], tensor by tensor."""
    return torch.cat([w[name][mask] for name, mask in of.items()])


def spread(values: Tensor, of: Masks) -> StateDict:
    """Inverse of ``kept``, with 0 elsewhere."""
    parts = values.split([int(mask.sum()) for mask in of.values()])
    found = {}
    for (name, mask), part in zip(of.items(), parts, strict=True):
        found[name] = torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, part)
    return found


def bitmap(of: Masks) -> Tensor:
    """A bit for each entry, uint8 [⌈P/8⌉]."""
    bits = torch.cat([mask.flatten() for mask in of.values()])
    return torch.from_numpy(np.packbits(bits.numpy()))


def from_bitmap(bits: Tensor, like: Mapping[str, Tensor]) -> Masks:
    """Inverse of ``bitmap`` for tensors of the shapes of ``like``, in its order."""
    sizes = [value.numel() for value in like.values()]
    flat = torch.from_numpy(np.unpackbits(bits.numpy(), count=sum(sizes))).bool()
    parts = zip(like.items(), flat.split(sizes), strict=True)
    return {name: part.view(value.shape) for (name, value), part in parts}
