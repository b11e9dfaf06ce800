"""Widths: how many channels a layer keeps under a width factor."""

from __future__ import annotations

FEWEST = 4  #: channels that a factor below 1 never goes under


def scale(channels: int, factor: float, multiple: int = 1) -> int:
    """``channels`` × ``factor``, rounded to a multiple; at least 4, unless it started smaller.

    Factor 1 changes nothing, so the counts of the papers hold exactly.
    """
    if factor == 1:
        return channels
    rounded = multiple * round(channels * factor / multiple)
    return max(rounded, min(channels, FEWEST))
