"""Exceptions that end or repeat a round, with a message of one line for the user."""

import re
from typing import Self, final

REMEDY = re.compile("; the checkpoint is kept, go on with --resume (.+?)(?=; |$)")
"""Remedy in the line of a run that ended, with its folder."""


class Stopped(RuntimeError):
    """Error that ends a run. The message is one line; the checkpoint keeps the last state.

    ``released``: line that may leave the server under [privacy]; empty: none may.
    """

    def __init__(self, line: str, released: str = "") -> None:
        super().__init__(line)
        self.released = released


class DivergedRound(Stopped):
    """Error for a server model that diverged in round ``t``, which may be undone."""

    def __init__(self, line: str, t: int, released: str = "") -> None:
        super().__init__(line, released)
        self.t = t

    def with_line(self, line: str) -> Self:
        """Return the error with another line."""
        return type(self)(line, self.t, self.released)


@final
class CollapsedRound(DivergedRound):
    """Error for a round with a collapsed accuracy, repeated once without its suspects alone."""
