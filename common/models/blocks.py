"""The blocks of networks that differ in depth: stages ``layer1``, ``layer2`` … of blocks 0, 1 …

Which entries of a state dict lie in a network's last blocks, and which of a larger network's blocks
go on from there (InclusiveFL).
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from common.settings.options import Average

_BLOCK = re.compile(r"((?:.+\.)?layer\d+)\.(\d+)\.(.+)")
HEADS = ("head.", "projection.")
SHORTCUTS = ("downsample", "shortcut")


def last_blocks(names: Iterable[str]) -> dict[str, int]:
    """The index of the last block of each stage, in the order of the stages."""
    found: dict[str, int] = {}
    for name in names:
        if block := _BLOCK.fullmatch(name):
            found[block[1]] = max(found.get(block[1], 0), int(block[2]))
    return found


def own_entries(names: Iterable[str], own: str) -> list[str]:
    """The entries of ``names`` in what ``average.own`` lists, in their order."""
    parts, names = own.split(","), list(names)
    prefixes = HEADS if "head" in parts else ()
    if "last" in parts:
        stage, index = list(last_blocks(names).items())[-1]
        prefixes = (*prefixes, f"{stage}.{index}.")
    return [name for name in names if name.startswith(prefixes)]


def onward(
    small: Mapping[str, Tensor], large: Mapping[str, Tensor], stages: str
) -> dict[str, list[str]]:
    """For each entry of ``small``'s last blocks, those of ``large`` in its place or further on.

    Blocks are L to L′ of a stage, if it has L + 1 blocks in ``small`` and L′ + 1 in ``large``, both
    inclusive. Left out are shortcuts, and entries that are not of one shape in all these blocks.
    ``stages``: ``all``, or the ``last`` alone.
    """
    ours, theirs = last_blocks(small), last_blocks(large)
    wanted = list(ours)[-1:] if stages == "last" else list(ours)
    found: dict[str, list[str]] = {}
    for name, value in small.items():
        block = _BLOCK.fullmatch(name)
        if not block or block[1] not in wanted or int(block[2]) != ours[block[1]]:
            continue
        stage, first, rest = block[1], int(block[2]), block[3]
        names = [f"{stage}.{i}.{rest}" for i in range(first, theirs[stage] + 1)]
        alike = all(each in large and large[each].shape == value.shape for each in names)
        if alike and not rest.startswith(SHORTCUTS):
            found[name] = names
    return found


def check_blocks(states: Mapping[str, Mapping[str, Tensor]], average: Average) -> None:
    """Raise ``ValueError``, one line, if [average] asks for last blocks of a network without any.

    ``states``: of the architectures by their names.
    """
    if average.across != "depth" or (average.beta == 0 and "last" not in average.own):
        return
    for spec, state in states.items():
        if not last_blocks(state):
            raise ValueError(
                f'average.across = "depth": {spec} has no stages of blocks; '
                'it takes part with average.own = "head" or "none", and average.beta = 0'
            )
