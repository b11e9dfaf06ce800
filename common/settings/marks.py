"""Marks of settings: what a setting is, as metadata of its field (``Annotated``).

A field has its default, its bounds and its marks in one place. Everything that depends on the
nature of a setting is derived from the marks (``common/keys.py``): paths in the folder of
a run, the rules of a node's owner, what a resumed run may change, what differential privacy
excludes, and what a leaderboard fixes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import final

Value = bool | int | float | str


@final
class Mark(Enum):
    """Mark without parameters."""

    FREE = "A resumed run may change the setting."
    FREE_WITHOUT_COSINE = "The same, unless a learning rate follows a cosine over all rounds."
    TEXT = "A text that names no file, module or download."
    DOWNLOAD = "Values other than false download files."
    CLIENT_EPOCHS = "Epochs that a client trains in a round."
    SERVER_EPOCHS = "Epochs that the server trains in a round."
    STARTED = "Where and how a run is started: runs that differ only in it are repetitions."
    CHOSEN = "A method's row of a leaderboard may choose the value."
    MACHINE = "A run or its machine decides the value, so no leaderboard fixes it."


@final
@dataclass(frozen=True)
class Auto:
    """Mark of a setting whose default, ``auto`` or for numbers 0, depends on the method."""

    usual: Value
    """Value of ``auto`` unless the method's contract has another."""


@final
@dataclass(frozen=True)
class Place:
    """Mark of a setting that names a folder or file; inside a run's folder it is kept relative."""

    rule: str = ""
    """Rule of a node's owner that lists the allowed places; empty: clients do not open it."""
    words: tuple[str, ...] = ()
    """Values of the setting that name no folder or file."""


@final
@dataclass(frozen=True)
class Names:
    """Mark of a setting whose values are names: built in, of a plug-in, or ``module:attribute``."""

    kind: str
    """Kind of plug-in, a key of ``plugins.WORDS``."""


@final
@dataclass(frozen=True)
class Form:
    """Mark of a text with a pattern."""

    words: str
    """How the text must be written, for error messages."""


@final
class Unprotected:
    """Mark of a setting that needs certain values under ``[privacy]``, because noise on a mean does
    not protect the data otherwise.

    ``reason``: why; ``allowed``: the values; ``modes``: values of ``privacy.mode`` for which it
    holds; ``unless``: another setting's key and the value with which every value is allowed.
    """

    def __init__(
        self,
        reason: str,
        *allowed: Value,
        modes: tuple[str, ...] = ("central", "local"),
        unless: tuple[str, Value] | None = None,
    ) -> None:
        self.reason, self.allowed, self.modes, self.unless = reason, allowed, modes, unless

    def excludes(self, key: str, settings: Mapping[str, Value]) -> bool:
        """Return whether the value at ``key`` is not allowed, by the ``settings`` of a run."""
        if settings["privacy.mode"] not in self.modes or settings[key] in self.allowed:
            return False
        return self.unless is None or settings[self.unless[0]] != self.unless[1]


@final
class OfEach:
    """Mark of a setting that needs certain values under ``[secure]``, because the server or others
    need what single clients send with its other values.

    ``reason``: why; ``allowed``: the values.
    """

    def __init__(self, reason: str, *allowed: Value) -> None:
        self.reason, self.allowed = reason, allowed

    def excludes(self, key: str, settings: Mapping[str, Value]) -> bool:
        """Return whether the value at ``key`` is not allowed, by the ``settings`` of a run."""
        return settings[key] not in self.allowed
