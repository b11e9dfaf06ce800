"""Names of classes and owners in files: one spelling each, and an error for two that look alike.

Spreadsheets and pandas write one class as ``0`` and ``0.0``, or leave a cell empty. Unless such
cells are recognised, they become classes or owners of their own without a word.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from common.files import in_order

NO_VALUE = {"nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "nat"}
"""Texts, in lower case, that programs write for a missing value."""
FLAGS = {"0": 0.0, "false": 0.0, "no": 0.0, "1": 1.0, "true": 1.0, "yes": 1.0}
"""Texts, in lower case, of a label that a sample lacks or has."""
WHOLE = re.compile(r"([+-]?\d+)\.0*")
FEW = 20  #: most numbers that are classes however few samples they have


def plain(value: object) -> str:
    """Return a value as text without spaces around it; ``1.0`` and ``1.`` become ``1``."""
    text = "" if value is None else str(value).strip()
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text


def number(text: str) -> float | None:
    """Return the number that a text is, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def folded(text: str) -> str:
    """Return what two spellings of one name have in common: the number, or the lower case."""
    value = number(text)
    return " ".join(text.casefold().split()) if value is None else repr(value)


@final
@dataclass
class Names:
    """Names in the order in which they come: ``codes(texts, ...)`` returns their numbers.

    ``column``: where the names are. ``known``: names that a file lists, which may look alike.
    ``classes``: whether they are classes; two owners may look alike, which only ``alike`` tells.
    ``word``: what a line of the file is called.
    """

    column: str
    known: Collection[str] = ()
    classes: bool = True
    word: str = "row"
    names: dict[str, int] = field(default_factory=dict)
    alike: list[str] = field(default_factory=list)  #: two spellings of owners, for a note
    _numbers: dict[object, int] = field(default_factory=dict)
    _first: dict[str, tuple[str, str]] = field(default_factory=dict)

    def codes(self, values: Sequence[object], path: Path, row: int) -> np.ndarray:
        """Return a number (int64) for each value of consecutive rows; ``row``: the first of them.

        Raises ``ValueError``, one line with file, row and column, for a value that is no name.
        """
        numbers = self._numbers
        for i, value in enumerate(values):
            if value not in numbers:
                numbers[value] = self._add(value, f"{path}: {self.word} {row + i}")
        return np.fromiter((numbers[value] for value in values), np.int64, len(values))

    def exact(self, name: str, rows: int) -> np.ndarray:
        """Return ``rows`` times the number of a name that needs no check, such as a folder's."""
        return np.full(rows, self.names.setdefault(name, len(self.names)), np.int64)

    def order(self) -> list[str]:
        """Return the names in their order, ``h2`` before ``h10``."""
        return sorted(self.names, key=in_order)

    def renumbered(self, order: Sequence[str], codes: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Return arrays of ``codes`` with the places of the names in ``order`` as numbers."""
        place = {name: i for i, name in enumerate(order)}
        new = np.array([place[name] for name in self.names], np.int64)
        return [new[part] for part in codes]

    def owners(self, codes: Sequence[np.ndarray]) -> tuple[tuple[str, ...], list[np.ndarray]]:
        """Return the owners of the first part in their order, and each part's numbers of owners.

        ``codes``: of each part, the first is for training. Owners that only other parts have get
        the numbers after those of the first, so that owner k of the first part is client k.
        """
        names, trained = list(self.names), set(codes[0].tolist())
        order = sorted(names, key=lambda name: (self.names[name] not in trained, in_order(name)))
        return tuple(order[: len(trained)]), self.renumbered(order, codes)

    def _add(self, value: object, place: str) -> int:
        text = plain(value)
        if text in self.names:
            return self.names[text]
        if text not in self.known:
            self._check(text, place)
        key = folded(text)
        other, where = self._first.setdefault(key, (text, place))
        if other != text and not (text in self.known and other in self.known):
            self._refuse(text, place, other, where)
        return int(self.exact(text, 1)[0])

    def _check(self, text: str, place: str) -> None:
        """Raise ``ValueError`` for a missing value, and for a class that is no whole number."""
        if not text or text.casefold() in NO_VALUE:
            shown = f"; {text!r} is a missing value" if text else ""
            raise ValueError(f"{place} has no {self.column!r}{shown}")
        value = number(text)
        if self.classes and value is not None and not value.is_integer():
            raise ValueError(
                f"{place}, column {self.column!r}: the label {text!r} is no class; to learn "
                "numbers, set data.objective to 'number'"
            )

    def _refuse(self, text: str, place: str, other: str, where: str) -> None:
        """Raise ``ValueError`` for a class that looks like another one; note it for owners."""
        if not self.classes:
            self.alike.append(f"{other!r} and {text!r} are two owners ({where.split(': ')[-1]})")
            return
        file, _, row = where.rpartition(": ")
        first = row if place.startswith(f"{file}: ") else where
        raise ValueError(
            f"{place}, column {self.column!r}: {text!r} looks like {other!r} ({first}); use one "
            "spelling, or list both in classes.txt"
        )


def check_numbers(names: Iterable[str], samples: int, where: str) -> None:
    """Raise ``ValueError``, one line, for classes that are rather values of a number to predict.

    Those are more than ``FEW`` numbers, more than one for every two of ``samples``.
    """
    values = [name for name in names if number(name) is not None]
    if len(values) > FEW and 2 * len(values) > samples:
        raise ValueError(
            f"{where}: {len(values)} different numbers in {samples} samples are no classes; to "
            "learn numbers, set data.objective to 'number'"
        )


def flags(values: Sequence[object], column: str, place: str, first: int) -> np.ndarray:
    """Return the values of a label as float32 (n,): 1 where a sample has it, else 0.

    ``place``: the file and what its lines are called; ``first``: number of the first value. Raises
    ``ValueError``, one line with both and the column, for a value that is not in ``FLAGS``.
    """
    texts = list(map(str, values))
    known = {text: FLAGS.get(plain(text).casefold()) for text in set(texts)}
    found = [known[text] for text in texts]
    if None in found:
        i = found.index(None)
        raise ValueError(
            f"{place} {first + i}, column {column!r}: {texts[i][:40]!r} is no label; labels are 0 "
            "or 1"
        )
    return np.array(found, np.float32)
