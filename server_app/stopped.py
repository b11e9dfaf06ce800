"""Exceptions that end or repeat a round, with a message of one line for the user."""

import re
from typing import final

REMEDY = re.compile("; the checkpoint is kept, go on with --resume (.+?)(?=; |$)")
"""Remedy in the line of a run that ended, with its folder."""


class Stopped(RuntimeError):
    """Error that ends a run. The message is one line; the checkpoint keeps the last state."""


class DivergedRound(Stopped):
    """Error for a server model that diverged in round ``t``, which may be undone."""

    def __init__(self, line: str, t: int) -> None:
        super().__init__(line)
        self.t = t


@final
class CollapsedRound(DivergedRound):
    """Error for a round with a collapsed accuracy, repeated once without its suspects alone."""
