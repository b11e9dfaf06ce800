"""Data sets of tables in files: tables, texts, and signals: windows of consecutive rows.

The first line names the columns. ``data.label-column`` holds the classes, or is several columns of
labels or numbers to learn; at most one has the owners (``data.owner-column``); all others are
numbers, but for row numbers of pandas and for ``data.ignore-columns``. A table has a sample per
row; so have texts, of which ``data.text-column`` is the only feature. With ``data.window`` > 0 the
rows are time steps in order, and samples are signals (columns, window): the windows of each run of
consecutive rows of one owner in one file, and of one class. Labels and numbers of a window are
those of its last row, and do not end a run.

Without test files a fifth is held out, always the same: of a table 20 % of each owner's rows (of
each class), of signals the last 20 % of each run's rows, so that no window overlaps a test window.
"""

from collections.abc import Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.account import Account
from common.data.dataset import Dataset, check_classes, fields_of, holdout, of_files, strata
from common.data.layout import by_part, clients_of, part_folders
from common.data.sheets import SUFFIXES, Sheet, unused
from common.data.spelling import Names, check_numbers
from common.data.texts import Encoder, Texts
from common.files import check_regular, read_text
from common.seeds import rng
from common.settings.config import Data

CLASSES = "classes.txt"  #: file with the names of all classes, one per line
HELD_OUT = 0.2  #: share of the samples for testing where there are no test files
Files = list[tuple[str, Path]]  #: owner (empty: by column or none) and path


def load_csv(data: Data) -> Dataset:
    """Load ``train.csv`` and, if it exists, ``test.csv`` in ``data.dir``.

    Without ``test.csv`` a file such as ``valid.csv`` is for testing. Files can be Parquet or JSON
    Lines (``jsonl``) too.
    """
    root = decoded.data_folder(data, data.name)
    parts = by_part(sheets(root))
    if "train" not in parts:
        raise ValueError(f"{root / 'train'}.{data.name} is missing")
    test = parts.get("test", parts.get("valid"))
    return _load(data, root, [("", parts["train"])], [("", test)] if test else [])


def load_client_csv(data: Data) -> Dataset:
    """Load the CSV files of several clients, one folder per client, in the order of their names.

    The files are ``CLIENT/train/*.csv`` and ``CLIENT/test/*.csv``, or only ``CLIENT/*.csv``.
    """
    root = decoded.data_folder(data, "client-csv")
    parts = {name: part_folders(root / name) for name in clients_of(root, "csv")}
    split = any("train" in folders for folders in parts.values())
    train, test = Files(), Files()
    for name, folders in parts.items():
        if split and "train" not in folders:
            raise ValueError(f"{root / name}: there is no train folder, but other clients have one")
        files = [(name, path) for path in sheets(folders["train"] if split else root / name)]
        if not files:
            raise ValueError(f"{root / name}: no *.csv files of a client")
        train += files
        testing = folders.get("test", folders.get("valid"))
        test += [(name, path) for path in sheets(testing)] if split and testing else []
    return _load(data, root, train, test)


def sheets(folder: Path) -> list[Path]:
    """Return the files with tables in a folder, without hidden ones, in order."""
    paths = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in paths if path.name[0] != "." and not path.is_dir())


def _load(data: Data, root: Path, train: Files, test: Files) -> Dataset:
    text = bool(data.text_column)
    if text and data.window:
        raise ValueError(
            f"data.window = {data.window} is not allowed with data.text-column = "
            f"{data.text_column!r}; allowed: 0"
        )
    if data.kind not in ("auto", "tokens" if text else "signal" if data.window else "table"):
        advice = (
            "CSV files are tables; for signals, set data.window, the rows of a signal, for texts "
            "data.text-column"
        )
        raise ValueError(
            f"data.kind = {data.kind!r} is not allowed with data.window = {data.window}: {advice}"
        )
    names = root / CLASSES
    columns, objective = (data.label_column, data.owner_column), data.objective_of_files
    options = [*columns, data.ignore_columns, str(data.window), str(data.stride), objective]
    encoder = Encoder(data) if text else None
    options += [data.text_column, *encoder.options] if encoder else []
    listed = objective == "classes" and names.is_file()
    paths = [path for _, path in train + test] + ([names] if listed else [])
    decode = partial(_decode, data, encoder, names, train, test)
    tensors = decoded.cached_files("csv", paths, decode, *options)
    dataset = of_files(root, tensors, paths, objective)
    return encoder.described(dataset) if encoder else dataset


@final
class _Part(NamedTuple):
    """Rows of the files of one part, in their order."""

    values: np.ndarray  #: float32 (rows, columns); of texts their tokens, an object array (rows,)
    label: np.ndarray  #: numbers of the classes (rows,); labels or numbers float32 (rows, D)
    owner: np.ndarray  #: numbers of the owners (rows,)
    starts: list[int]  #: row at which each file begins

    def runs(self) -> list[tuple[int, int]]:
        """Return the bounds of each run: consecutive rows of one owner and file (and class)."""
        change = np.diff(self.owner) != 0
        if self.label.ndim == 1:
            change |= np.diff(self.label) != 0
        inside = np.flatnonzero(change) + 1
        bounds = sorted({0, *self.starts, *inside.tolist(), len(self.label)})
        return list(pairwise(bounds))

    def of(self, bounds: Sequence[tuple[int, int]], window: int, stride: int) -> "_Part":
        """Return the windows (n, C, window) of the rows in each of ``bounds``."""
        cut = [windows(self.values[a:b], window, stride) for a, b in bounds]
        rows = [windows(np.arange(a, b)[:, None], window, stride)[:, 0, -1] for a, b in bounds]
        last = np.concatenate([np.empty(0, np.int64), *rows])
        empty = np.empty((0, self.values.shape[1], window), np.float32)
        return _Part(np.concatenate([empty, *cut]), self.label[last], self.owner[last], [])


@final
class _Reader:
    """Reads the files of all parts, which have the same columns, names of classes and owners."""

    def __init__(self, data: Data, encoder: Encoder | None, known: Sequence[str]) -> None:
        self._data, self._encoder = data, encoder
        self._header: list[str] = []
        self._commas: list[Path] = []
        self.objective = data.objective_of_files
        self.label = Names(data.label_column or "label", dict.fromkeys(known))
        self.targets = data.label_columns or ("label",)
        if self.objective == "classes":
            self.targets = (self.label.column,)
        elif self.objective == "next-token":
            self.targets = ()
        self.owner = Names(data.owner_column, classes=False)
        left = {*map(str.strip, data.ignore_columns.split(","))}
        self._prompt = encoder.columns if encoder else ()
        roles = {data.text_column, data.owner_column, *self.targets, *self._prompt}
        self._is_used = roles.__contains__ if encoder else lambda name: name not in left
        self.features: list[str] = []
        self.notes: list[str] = []  #: of texts that were cut or left out
        self._unused: dict[str, str] = {}

    def account(self, **known: Any) -> Account:
        """Return what the files that were read so far hold; ``known``: the other fields."""
        commas = [f"{path.name}: decimal commas" for path in self._commas]
        return Account(
            features=tuple(self.features),
            label=self.label.column if self.objective == "classes" else "",
            owner=self.owner.column,
            unused=self._unused,
            notes=(*commas, *self.owner.alike, *self.notes),
            **known,
        )

    def part(self, files: Files) -> _Part:
        """Read files, block by block, into arrays that are allocated once."""
        opened = [(owner, Sheet(path, self._is_used)) for owner, path in files]
        for _, sheet in opened:
            self._check(sheet)
        most, end, starts = sum(sheet.rows for _, sheet in opened), 0, []
        shape = (most,) if self._encoder else (most, len(self.features))
        values: np.ndarray = np.empty(shape, object if self._encoder else np.float32)
        label, owner = np.zeros(most, np.int64), np.empty(most, np.int64)
        if self.objective not in ("classes", "next-token"):
            label = np.empty((most, len(self.targets)), np.float32)
        for name, sheet in opened:
            starts.append(end)
            for first, columns in sheet.blocks():
                by_name = dict(zip(sheet.header, columns, strict=True))
                into = slice(end, end := end + len(columns[0]))
                if self.objective == "classes":
                    label[into] = self.label.codes(by_name[self.label.column], sheet.path, first)
                elif self.targets:
                    label[into] = sheet.targets(columns, self.targets, first, self.objective)
                if self.owner.column:
                    owner[into] = self.owner.codes(by_name[self.owner.column], sheet.path, first)
                else:
                    owner[into] = self.owner.exact(name, len(columns[0]))
                if self._encoder:
                    places = (f"{sheet.path}: row {i}" for i in count(first))
                    others = [by_name[name] for name in self._prompt]
                    texts = by_name[self._data.text_column]
                    values[into] = self._encoder.encode(texts, places, others)
                    continue
                for j, column in enumerate(self.features):
                    values[into, j] = sheet.numbers(by_name[column], column, first)
            self._commas += [sheet.path] if "," in sheet.decimals else []
        return _Part(values[:end], label[:end], owner[:end], starts)

    def _check(self, sheet: Sheet) -> None:
        """Choose the columns of the first file; raise ``ValueError`` if another one differs."""
        if self._header:
            first, header = (list(filter(self._is_used, of)) for of in (self._header, sheet.header))
            if header != first and not (self._encoder and {*first} == {*header}):
                raise ValueError(
                    f"{sheet.path}: its columns are {', '.join(header)}; those of the first "
                    f"file are {', '.join(first)}"
                )
            return
        self._header = header = sheet.header
        roles = [*self.targets, *([self.owner.column] if self.owner.column else [])]
        for i, name in enumerate(roles):
            if name not in header:
                role = "label" if i < len(self.targets) else "owner"
                several = "; several need data.objective = 'labels' or 'number'"
                raise ValueError(
                    f"{sheet.path}: no column {name!r}; data.{role}-column should be one of "
                    f"{', '.join(header)}{several * (role == 'label' and ',' in name)}"
                )
        self._unused = unused(header, roles, self._data.ignore_columns, sheet.path)
        if text := self._data.text_column:
            if text not in header or text in roles:
                raise ValueError(
                    f"{sheet.path}: no column {text!r} besides label and owner; data.text-column "
                    f"should be one of {', '.join(header)}"
                )
            for name in self._prompt:
                if name not in header or name == text:
                    raise ValueError(
                        f"{sheet.path}: no column {name!r} besides the text's; data.prompt can "
                        f"have {', '.join(name for name in header if name != text)}"
                    )
            roles += self._prompt
            others = [name for name in header if name not in (text, *roles)]
            self._unused = dict.fromkeys(others, "not the text") | self._unused
        self.features = [name for name in header if name not in {*roles, *self._unused}]
        if not self.features:
            raise ValueError(f"{sheet.path}: no column of numbers besides {roles[0]!r}")


def _decode(
    data: Data, encoder: Encoder | None, names: Path, train: Files, test: Files
) -> dict[str, Tensor]:
    has_classes = data.objective_of_files == "classes"
    known = _listed(names) if has_classes else []
    reader = _Reader(data, encoder, known)
    parts = [reader.part(files) for files in (train, test) if files]
    classes, label = list(reader.targets), [part.label for part in parts]
    if has_classes:
        classes = known or reader.label.order()
        _check_names(reader.label, names, known, train[0][1], sum(map(len, label)))
        label = reader.label.renumbered(classes, label)
    owners, owner = reader.owner.owners([part.owner for part in parts])
    owners = () if owners == ("",) else owners
    parts = [_Part(p.values, y, o, p.starts) for p, y, o in zip(parts, label, owner, strict=True)]
    if encoder:
        texts = [Texts(*part[:3]) for part in parts]
        fields, reader.notes = encoder.fields(texts, len(owners), names.parent)
    else:
        run = "have one class" if has_classes else "have one owner and file"
        hint = f": no {data.window} rows in a row {run}" if data.window else ""
        sides = [side[:3] for side in _sides(data, parts, len(classes))]
        fields = fields_of(sides, len(owners), names.parent, hint)
    account = reader.account(declared=bool(known), owners=owners, classes=tuple(classes))
    return {**fields, "account": account.packed()}


def _check_names(label: Names, names: Path, known: list[str], first: Path, samples: int) -> None:
    """Raise ``ValueError``, one line, for classes that ``known`` (if any) lacks, and for numbers.

    ``names``: the file of ``known``; ``first``: the first file of the ``samples``.
    """
    used = label.order()
    check_classes(len(used) - 1, str(names.parent))
    if known and (unknown := [name for name in used if name not in label.known]):
        raise ValueError(f"{names}: class {unknown[0]!r} of the data is not in it")
    if not known:
        check_numbers(used, samples, f"{first}: column {label.column!r}")


def _sides(data: Data, parts: Sequence[_Part], classes: int) -> list[_Part]:
    """Return the samples for training and for testing."""
    if len(parts) == 2 and not data.window:
        return list(parts)
    if data.window:
        bounds = [part.runs() for part in parts]
        if len(parts) == 1:  # the first 80 % of each run, and the rest
            cuts = [(a, b - round(HELD_OUT * (b - a)), b) for a, b in bounds[0]]
            bounds = [[(a, cut) for a, cut, _ in cuts], [(cut, b) for _, cut, b in cuts]]
            parts = [parts[0], parts[0]]
        return [
            part.of(runs, data.window, data.stride)
            for part, runs in zip(parts, bounds, strict=True)
        ]
    (whole,) = parts
    if not len(whole.label):
        return [whole, whole]
    key = torch.from_numpy(whole.owner) * classes + strata(torch.from_numpy(whole.label))
    return [
        _Part(whole.values[rows], whole.label[rows], whole.owner[rows], [])
        for rows in (part.numpy() for part in holdout(key, HELD_OUT, rng(0, "csv")))
    ]


def _listed(names: Path) -> list[str]:
    """Return the classes in ``classes.txt``; empty if there is no such file."""
    if not names.is_file():
        return []
    check_regular(names)
    known = [line.strip() for line in read_text(names).split("\n") if line.strip()]
    if len(set(known)) < len(known):
        raise ValueError(f"{names}: class {max(known, key=known.count)!r} is in it more than once")
    return known


def windows(values: np.ndarray, length: int, stride: int = 0) -> np.ndarray:
    """Return windows (n, C, ``length``) of rows (rows, C), one every ``stride`` rows.

    ``stride`` 0: half a window. An incomplete window at the end is left out.
    """
    step = stride or max(length // 2, 1)
    starts = range(0, len(values) - length + 1, step)
    if not starts:
        return np.empty((0, values.shape[1], length), values.dtype)
    return np.stack([values[start : start + length].T for start in starts])
