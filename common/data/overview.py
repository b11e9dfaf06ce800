"""What was read, as it is shown before anything is trained on it.

The account says what a reader read from files; the samples say the rest: classes, owners, copies,
and what the clients' scores would hide. ``fedmosaic data``, the start of a run, the log of a node
and the report show the same lines.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from common.data.account import Account
from common.data.dataset import Dataset
from common.data.kinds import TOKENS, describe
from common.data.shares import Share
from common.files import write_atomically
from common.measures import ObjectiveName
from common.objectives import OBJECTIVES

FILE = "data.json"  #: file in the folder of a run
FEW = 12  #: most classes, owners, columns or clients that a line names
MOST_BYTES = 2**31  #: samples of more bytes are not searched for copies, which takes a second a GiB
Row = tuple[str, str]  #: heading and text of one line


@final
@dataclass(frozen=True)
class Clients:
    """What the scores of clients on their own test samples hide."""

    one_class: tuple[int, ...] = ()  #: clients whose test samples have one class
    untested: tuple[int, ...] = ()  #: clients without test samples
    copied: int = 0  #: test samples that equal a training sample of the same client
    tested: int = 0  #: test samples of all clients
    clients: int = 0  #: number of clients


@final
@dataclass(frozen=True)
class Overview:
    """Everything that is shown about a data set before training."""

    name: str
    samples: str  #: the shape of a sample in words
    training: int  #: number of training samples
    test: int  #: number of test samples
    classes: tuple[tuple[str, int, int], ...]
    """Name of each class or label, its training samples and test samples; empty for numbers."""
    owners: tuple[tuple[str, int], ...]  #: name and training samples; empty without owners
    public: int  #: images that the data set reserves for a public set
    copies: int | None  #: training samples that equal an earlier one; None: not counted
    leaked: int | None  #: test samples that equal a training sample; None: not counted
    account: Account
    objective: ObjectiveName = "classes"  #: what is learnt
    targets: tuple[tuple[str, float, float], ...] = ()
    """Name, least and largest value of each number to learn, over the training samples."""
    alike: tuple[str, ...] = ()  #: labels and numbers that all test samples have in common
    tokenizer: str = ""  #: fingerprint of the tokenizer of texts
    vocab: int = 0  #: number of different tokens, padding included
    lengths: tuple[int, int, int] = (0, 0, 0)
    """Least, most and median tokens of a training sample of texts."""
    learnt: tuple[int, int] = (0, 0)  #: next tokens to learn in training and test samples
    clients: Clients = Clients()

    def as_dict(self) -> dict[str, Any]:
        """Return the overview for JSON, with the lines that are shown."""
        return {**asdict(self), "rows": self.rows(), "warnings": self.warnings()}

    def rows(self) -> list[Row]:
        """Return the lines that describe the data, without warnings."""
        account = self.account
        public = f", {self.public:,} for a public set" if self.public else ""
        parts = f"{self.training:,} for training, {self.test:,} for testing{public}"
        ignored = (f"{n} of {kind} ({path})" for kind, (n, path) in account.ignored.items())
        lengths = "{:,} to {:,} tokens, median {:,}".format(*self.lengths)
        rows = [
            ("data", self.name),
            ("samples", f"{parts}: {self.samples}"),
            ("tokenizer", self.tokenizer and f"{self.tokenizer}, {self.vocab:,} different tokens"),
            ("lengths", lengths if self.vocab else ""),
            (self.objective, self._learnt()),
            ("label", account.label and f"column {account.label!r}"),
            ("features", _listed(map(repr, account.features))),
            ("not used", _listed(f"{name!r} ({why})" for name, why in account.unused.items())),
            ("owners", self._owners()),
            ("images", _listed(f"{n} of {kind}" for kind, n in account.images.items())),
            ("not read", _listed(ignored)),
            ("copies", self._copies()),
            *(("note", note) for note in account.notes),
        ]
        return [(heading, text) for heading, text in rows if text]

    def warnings(self) -> list[str]:
        """Return a line for each reason why scores on these data can mislead."""
        lines, of = [], self.clients
        one_each = self.objective == "classes"
        if one_each and len(tested := [name for name, _, n in self.classes if n]) == 1:
            lines.append(f"all test samples have the class {tested[0]!r}")
        if self.alike:
            title = OBJECTIVES[self.objective].primary.title
            lines.append(
                f"all test samples are alike in {_listed(map(repr, self.alike))}, which do not "
                f"count in {title}"
            )
        if of.one_class:
            lines.append(
                f"{len(of.one_class)} of {of.clients} clients test on one class "
                f"({_listed(of.one_class)}): a model that always predicts it has 100 % there"
            )
        if of.untested:
            lines.append(
                f"{len(of.untested)} of {of.clients} clients have no test samples "
                f"({_listed(of.untested)}): they have no score"
            )
        if self.leaked:
            lines.append(
                f"{self.leaked:,} of {self.test:,} test samples are training samples "
                "too: scores on them are too high"
            )
        if of.copied:
            lines.append(
                f"{of.copied:,} of {of.tested:,} test samples of clients equal a "
                "training sample of the same client: scores on them are too high"
            )
        return lines

    def _classes(self) -> str:
        empty = [repr(name) for name, n, _ in self.classes if not n]
        without = f"; without training samples: {_listed(empty)}" if empty else ""
        if len(self.classes) <= FEW:
            each = ", ".join(f"{name} ({n} + {test})" for name, n, test in self.classes)
            return f"{len(self.classes)}, with training + test samples: {each}{without}"
        first, last = self.classes[0][0], self.classes[-1][0]
        between = _between(n for _, n, _ in self.classes)
        return f"{len(self.classes)}: {first} to {last}, with {between}{without}"

    def _learnt(self) -> str:
        if self.objective == "next-token":
            return "{:,} tokens to learn in training, {:,} in testing".format(*self.learnt)
        return self._classes() if self.classes else self._targets()

    def _targets(self) -> str:
        return _listed(f"{name} ({low:g} to {high:g})" for name, low, high in self.targets)

    def _owners(self) -> str:
        if not self.owners:
            return ""
        column = f" (column {self.account.owner!r})" if self.account.owner else ""
        if len(self.owners) <= FEW:
            return (
                f"{len(self.owners)}{column}: {', '.join(f'{who} {n}' for who, n in self.owners)}"
            )
        return f"{len(self.owners)}{column}, with {_between(n for _, n in self.owners)}"

    def _copies(self) -> str:
        if self.copies is None:
            return "not counted, because the samples take more than 2 GiB"
        return f"{self.copies:,} training samples equal an earlier one" if self.copies else ""


def overview(dataset: Dataset) -> Overview:
    """Return what is shown about ``dataset``, without what the clients' scores hide."""
    named: dict[str, Any] = {"classes": (), "objective": dataset.objective}
    if dataset.objective == "number":
        bounds = torch.stack(dataset.y.aminmax(dim=0), 1).tolist()
        named["targets"] = tuple((n, *b) for n, b in zip(dataset.classes, bounds, strict=True))
    elif dataset.objective == "next-token":
        named["learnt"] = tuple(int((y > 0).sum()) for y in (dataset.y, dataset.y_test))
    else:
        counts = (dataset.counts(y) for y in (dataset.y, dataset.y_test))
        named["classes"] = tuple(zip(dataset.classes, *counts, strict=True))
    if dataset.objective in ("labels", "number"):
        alike = (dataset.y_test == dataset.y_test[:1]).all(0).tolist()
        named["alike"] = tuple(n for n, same in zip(dataset.classes, alike, strict=True) if same)
    if dataset.kind is TOKENS:
        lengths = (dataset.x > 0).sum(1)
        named["lengths"] = tuple(int(of(lengths)) for of in (torch.min, torch.max, torch.median))
        named |= {"tokenizer": dataset.tokenizer, "vocab": dataset.vocab}
    owners: tuple[tuple[str, int], ...] = ()
    if dataset.owner is not None:
        sizes = torch.bincount(dataset.owner, minlength=dataset.owners).tolist()
        names = dataset.account.owners or tuple(map(str, range(len(sizes))))
        owners = tuple(zip(names, sizes, strict=False))
    known = _digests(dataset)
    copies = leaked = None
    if known is not None:
        copies = len(known[0]) - len(np.unique(known[0]))
        leaked = int(np.isin(known[1], known[0]).sum())
    return Overview(
        name=dataset.name,
        samples=describe(dataset.shape),
        training=len(dataset.y),
        test=len(dataset.y_test),
        **named,
        owners=owners,
        public=0 if dataset.x_public is None else len(dataset.x_public),
        copies=copies,
        leaked=leaked,
        account=dataset.account,
    )


def write(folder: Path, found: Overview) -> None:
    """Write ``data.json`` into the folder of a run, for its report."""
    text = json.dumps(found.as_dict(), indent=1, ensure_ascii=False)
    write_atomically(folder / FILE, f"{text}\n".encode())


def clients_of(shares: Iterable[Share], first: int = 0) -> Clients:
    """Return what the scores of clients hide; ``shares``: their samples, from client ``first``."""
    one_class, untested, counts = list[int](), list[int](), Counter[str]()
    for k, share in enumerate(shares, first):
        pool, rows = share.pool, share.test
        labels = (pool.y_test if share.of_test else pool.y)[rows]
        counts["clients"] += 1
        counts["tested"] += len(rows)
        if not len(rows):
            untested.append(k)
        elif labels.ndim == 1 and pool.num_classes > 1 and len(labels.unique()) == 1:
            one_class.append(k)
        if (known := _digests(pool)) is not None:
            mine = known[int(share.of_test)][rows.numpy()]
            counts["copied"] += int(np.isin(mine, known[0][share.train.numpy()]).sum())
    return Clients(tuple(one_class), tuple(untested), **counts)


@lru_cache(maxsize=4)
def _digests(dataset: Dataset) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a digest (uint64) of each training and each test sample; None for too many bytes.

    Two of a million different samples have the same digest with a probability of 3e-8.
    """
    if sum(x.numel() * x.element_size() for x in (dataset.x, dataset.x_test)) > MOST_BYTES:
        return None
    return _digested(dataset.x), _digested(dataset.x_test)


def _digested(x: Tensor) -> np.ndarray:
    def digest(row: np.ndarray) -> int:
        return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")

    return np.fromiter((digest(row) for row in x.flatten(1).numpy()), np.uint64, len(x))


def _between(sizes: Iterable[int]) -> str:
    least, *_, most = sorted(sizes)
    return f"{least:,} to {most:,} training samples"


def _listed(values: Iterable[object]) -> str:
    names = list(map(str, values))
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
