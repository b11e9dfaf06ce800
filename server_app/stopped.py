"""Exceptions that end or repeat a round, with a message of one line for the user."""

from collections.abc import Sequence
from typing import final


class Stopped(RuntimeError):
    """The run cannot go on. The message is one line; the checkpoint keeps the last state."""


@final
class DivergedRound(Stopped):
    """The server's model diverged in round ``t``, which may be undone.

    ``suspects``: the clients whose numbers in that round exceed those of all honest clients.
    """

    def __init__(self, line: str, t: int, suspects: Sequence[int]) -> None:
        super().__init__(line)
        self.t, self.suspects = t, list(suspects)
