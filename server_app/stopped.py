"""The run cannot go on, and the user must hear why in one line."""

from collections.abc import Sequence
from typing import final


class Stopped(RuntimeError):
    """Raised with a one-line reason; what was reached is kept in the checkpoint."""


@final
class DivergedRound(Stopped):
    """The server's model after round ``t`` is useless, and that round may be undone.

    ``suspects``: the clients whose numbers in that round are further out than any honest one's.
    """

    def __init__(self, line: str, t: int, suspects: Sequence[int]) -> None:
        super().__init__(line)
        self.t, self.suspects = t, list(suspects)
