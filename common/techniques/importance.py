"""Selection of a network's largest entries by absolute value, and its encoding in messages.

Entries are those of the weights and biases of convolutions and linear layers, in the order of the
state dict. All other tensors of a network (normalisation, buffers) stay complete.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from common.exchange.records import StateDict

Masks = dict[str, Tensor]
"""Names of tensors to masks of the kept entries, bool of the tensor's shape."""
Groups = dict[str, list[str]]
"""Names of groups to names of the tensors whose entries share a threshold."""


def entries(net: nn.Module) -> list[str]:
    """Return the names of the weights and biases of convolutions and linear layers."""
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [
        f"{name}.{leaf}" if name else leaf
        for name, module in net.named_modules()
        if isinstance(module, layers)
        for leaf, _ in module.named_parameters(recurse=False)
    ]


def groups(names: Sequence[str], scope: str) -> Groups:
    """Return one group of all tensors (``global``) or one for each part of the network (``stage``).

    A part is the text before the first dot of a name, such as ``conv1``, ``layer3`` and ``head``.
    """
    members: Groups = {}
    for name in names:
        stage = name.removeprefix("base.").partition(".")[0]
        members.setdefault("all" if scope == "global" else stage, []).append(name)
    return members


def thresholds(w: Mapping[str, Tensor], groups: Groups, size: float) -> dict[str, float]:
    """Return θ of each group of P entries: the max(⌊size · P⌋, 1)-th largest |w|."""
    theta = {}
    for group, names in groups.items():
        values = torch.cat([w[name].abs().flatten() for name in names])
        count = max(int(size * len(values) + 1e-9), 1)
        theta[group] = float(values.kthvalue(len(values) - count + 1).values)
    return theta


def by_name(theta: Mapping[str, float], groups: Groups) -> dict[str, float]:
    """Return the threshold of each tensor."""
    return {name: theta[group] for group, names in groups.items() for name in names}


def masks(w: Mapping[str, Tensor], theta: Mapping[str, float]) -> Masks:
    """Return m = 1(|w| ≥ θ), including ties; ``theta`` by tensor."""
    return {name: w[name].abs() >= least for name, least in theta.items()}


def kept(w: Mapping[str, Tensor], masks: Masks) -> Tensor:
    """Return the kept entries [K], tensor by tensor."""
    return torch.cat([w[name][mask] for name, mask in masks.items()])


def spread(values: Tensor, masks: Masks) -> StateDict:
    """Return tensors with ``values`` [K] at the kept entries and 0 elsewhere."""
    pieces = values.split([int(mask.sum()) for mask in masks.values()])
    state = {}
    for (name, mask), piece in zip(masks.items(), pieces, strict=True):
        state[name] = torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, piece)
    return state


def bitmap(masks: Masks) -> Tensor:
    """Return the masks with one bit for each entry, uint8 [⌈P/8⌉]."""
    bits = torch.cat([mask.flatten() for mask in masks.values()])
    return torch.from_numpy(np.packbits(bits.numpy()))


def from_bitmap(bits: Tensor, like: Mapping[str, Tensor]) -> Masks:
    """Return the masks from ``bitmap`` for tensors with the shapes and the order of ``like``."""
    sizes = [value.numel() for value in like.values()]
    masks = torch.from_numpy(np.unpackbits(bits.numpy(), count=sum(sizes))).bool()
    pairs = zip(like.items(), masks.split(sizes), strict=True)
    return {name: mask.view(value.shape) for (name, value), mask in pairs}
