"""What a reader of files read: its columns, its images, and the files that it left out.

Each reader fills one ``Account``. ``overview.py`` adds what follows from the samples themselves.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from pydantic import TypeAdapter
from torch import Tensor


@final
@dataclass(frozen=True)
class Account:
    """What was read from a user's files; empty for a data set that is not read from them."""

    features: tuple[str, ...] = ()  #: columns that the networks get
    label: str = ""  #: column of the classes
    owner: str = ""  #: column of the owners
    unused: Mapping[str, str] = field(default_factory=dict)  #: column to why no network gets it
    images: Mapping[str, int] = field(default_factory=dict)  #: "width×height mode" to images
    ignored: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Suffix to the number of files that were not read, and one of them."""
    notes: tuple[str, ...] = ()  #: what was changed in reading, a line each
    declared: bool = False  #: whether the files list the classes, so that one can lack samples
    owners: tuple[str, ...] = ()  #: names of the owners by number; empty: numbers
    classes: tuple[str, ...] = ()  #: names of the classes by number

    def packed(self) -> Tensor:
        """Return the account as uint8 (n,), to be kept beside decoded samples."""
        return torch.frombuffer(bytearray(AS_JSON.dump_json(self)), dtype=torch.uint8)


AS_JSON = TypeAdapter(Account)


def unpacked(content: Tensor) -> Account:
    """Return the account that ``packed`` converted."""
    return AS_JSON.validate_json(bytes(content.tolist()))


def ignored(root: Path, read: Iterable[str | Path]) -> dict[str, tuple[int, str]]:
    """Return the files inside ``root`` that are not among ``read``, by suffix.

    Each suffix has the number of files and the path of one, relative to ``root``. Hidden files and
    folders do not count.
    """
    known, counts, examples = {os.fspath(path) for path in read}, Counter[str](), dict[str, str]()
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(names):
            if name[0] != "." and (path := os.path.join(parent, name)) not in known:
                suffix = os.path.splitext(name)[1].lower() or "no suffix"
                counts[suffix] += 1
                examples.setdefault(suffix, os.path.relpath(path, root))
    return {suffix: (n, examples[suffix]) for suffix, n in counts.most_common()}
