"""Match blocks of networks that differ in depth: stages ``layer1``, ``layer2`` … of blocks 0, 1 …

The functions select the state-dict entries of a network's last blocks, and the blocks of a larger
network from there on (InclusiveFL).
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from common.settings.options import Average

_BLOCK = re.compile(r"((?:.+\.)?layer\d+)\.(\d+)\.(.+)")
HEADS = ("head.", "projection.")
SHORTCUTS = ("downsample", "shortcut")


def last_blocks(names: Iterable[str]) -> dict[str, int]:
    """Return the index of the last block of each stage, in the order of the stages."""
    last: dict[str, int] = {}
    for name in names:
        if block := _BLOCK.fullmatch(name):
            last[block[1]] = max(last.get(block[1], 0), int(block[2]))
    return last


def own_entries(names: Iterable[str], own: str) -> list[str]:
    """Return the entries of ``names`` in the parts that ``average.own`` lists, in order."""
    layers, names = own.split(","), list(names)
    prefixes = HEADS if "head" in layers else ()
    if "last" in layers:
        stage, index = list(last_blocks(names).items())[-1]
        prefixes = (*prefixes, f"{stage}.{index}.")
    return [name for name in names if name.startswith(prefixes)]


def onward(
    small: Mapping[str, Tensor], large: Mapping[str, Tensor], stages: str
) -> dict[str, list[str]]:
    """Map each entry of ``small``'s last blocks to the entries of ``large`` from that block on.

    The entries are in blocks L to L′ (inclusive) of a stage with L + 1 blocks in ``small`` and
    L′ + 1 in ``large``. Shortcuts are omitted, and entries whose shape differs between these
    blocks. ``stages``: ``all`` or ``last``.
    """
    last_small, last_large = last_blocks(small), last_blocks(large)
    selected = list(last_small)[-1:] if stages == "last" else list(last_small)
    entries: dict[str, list[str]] = {}
    for name, value in small.items():
        block = _BLOCK.fullmatch(name)
        if not block or block[1] not in selected or int(block[2]) != last_small[block[1]]:
            continue
        stage, first, suffix = block[1], int(block[2]), block[3]
        names = [f"{stage}.{i}.{suffix}" for i in range(first, last_large[stage] + 1)]
        alike = all(other in large and large[other].shape == value.shape for other in names)
        if alike and not suffix.startswith(SHORTCUTS):
            entries[name] = names
    return entries


def check_blocks(states: Mapping[str, Mapping[str, Tensor]], average: Average) -> None:
    """Raise ``ValueError``, one line, if [average] needs last blocks and a network has none.

    ``states``: state dicts by architecture.
    """
    if average.across != "depth" or (average.beta == 0 and "last" not in average.own):
        return
    for spec, state in states.items():
        if not last_blocks(state):
            raise ValueError(
                f'average.across = "depth": {spec} has no stages of blocks; '
                'it takes part with average.own = "head" or "none", and average.beta = 0'
            )
