"""Sub-models: a smaller network's state dict as part of a larger one's.

Two entries are the same layer if they have the same name and shape; names count the blocks of a
stage from its start, so ``layer2.1.conv1`` of a ResNet-18 is that of a ResNet-26.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from common.records import StateDict


def cut(whole: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> StateDict:
    """The entries of ``whole`` under the names of ``like``, in the order of ``like``; no copies."""
    return {name: whole[name] for name in like}


def difference(part: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> str:
    """The first layer of ``part`` that ``whole`` does not have; empty for a sub-model."""
    for name, value in part.items():
        if name not in whole:
            return f"{name!r} is not in it"
        if whole[name].shape != value.shape:
            return f"{name!r} is {list(value.shape)}, in it {list(whole[name].shape)}"
    return ""


def largest(states: Mapping[str, Mapping[str, Tensor]]) -> str:
    """The architecture of which all the others are sub-models, by the name it has in ``states``.

    Raises ``ValueError``, one line, if there is none: the largest, and who does not fit into it.
    """
    found = max(states, key=lambda spec: sum(value.numel() for value in states[spec].values()))
    for spec, state in states.items():
        if reason := difference(state, states[found]):
            raise ValueError(f"{spec} is no sub-model of {found}, the largest of all: {reason}")
    return found


def check_nested(states: Mapping[str, Mapping[str, Tensor]], key: str) -> str:
    """``largest``, with an error that names the run config's key that asks for it."""
    try:
        return largest(states)
    except ValueError as error:
        raise ValueError(f'{key} = "layerwise": {error}; "same" takes any fleet') from None
