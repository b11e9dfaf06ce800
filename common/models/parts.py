"""Parts of a network by the names of their state-dict entries: layers, head, BatchNorm.

A method that shares only a part of a network selects the part here, so that server and clients cut
the same entries. Networks on torch's device ``meta`` have all that the functions need.
"""

from itertools import chain

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from common.models.classifier import Classifier

NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)


def layers(net: Classifier) -> list[list[str]]:
    """Return the entries of each layer of ``net``, in the order of registration, the head last.

    A layer is a module with parameters of its own, together with the normalisation layers that are
    registered between it and the next one.
    """
    kept, found, head = net.state_dict().keys(), list[list[str]](), list[str]()
    for prefix, module in net.named_modules():
        tensors = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        named = (f"{prefix}.{name}".lstrip(".") for name, _ in tensors)
        entries = [name for name in named if name in kept]
        if module is net.head:
            head = entries
        elif isinstance(module, NORMS) and found:
            found[-1] += entries
        elif entries:
            found.append(entries)
    return [*found, head]


def last(net: Classifier, count: int = 1) -> frozenset[str]:
    """Return the entries of the last ``count`` layers of ``net``; 1: the head, 0: none."""
    every = layers(net)
    return frozenset(chain.from_iterable(every[max(len(every) - count, 0) :]))


def batchnorm(net: nn.Module, *, by_name: bool = False) -> frozenset[str]:
    """Return the entries of all BatchNorm layers of ``net``: parameters, statistics and counters.

    ``by_name``: the entries with ``bn`` in their names instead, of whatever layer.
    """
    if by_name:
        return frozenset(name for name in net.state_dict() if "bn" in name)
    return frozenset(
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in net.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    )


def buffers(net: nn.Module) -> frozenset[str]:
    """Return the entries of ``net`` that are no parameters, such as BatchNorm's statistics."""
    return frozenset(net.state_dict()) - {name for name, _ in net.named_parameters()}
