"""Data sets of CSV files: tables, and signals that are windows of consecutive rows.

The first line names the columns. One column holds the classes (``data.label-column``), at most one
the owners (``data.owner-column``); all others are numbers. A table has a sample per row. With
``data.window`` > 0 the rows are time steps in order, and samples are signals (columns, window): the
windows of each run of consecutive rows with one class and one owner in one file.

Without test files a fifth is held out, always the same: of a table 20 % of each owner's rows of
each class, of signals the last 20 % of each run's rows, so that no window overlaps a test window.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.dataset import Dataset, check_classes, holdout, measured
from common.data.folder import subfolders
from common.files import check_regular, in_order, read_text
from common.seeds import rng
from common.settings.config import Data

CLASSES = "classes.txt"  #: file with the names of all classes, one per line
HELD_OUT = 0.2  #: share of the samples for testing where there are no test files
Files = list[tuple[str, Path]]  #: owner (empty: by column or none) and path


def load_csv(data: Data) -> Dataset:
    """Load ``train.csv`` and, if it exists, ``test.csv`` in ``data.dir``."""
    root = decoded.data_folder(data, "csv")
    if not (root / "train.csv").is_file():
        raise ValueError(f"{root / 'train.csv'} is missing")
    test = root / "test.csv"
    return _load(data, root, [("", root / "train.csv")], [("", test)] if test.is_file() else [])


def load_client_csv(data: Data) -> Dataset:
    """Load the CSV files of several clients, one folder per client, in the order of their names.

    The files are ``CLIENT/train/*.csv`` and ``CLIENT/test/*.csv``, or only ``CLIENT/*.csv``.
    """
    root = decoded.data_folder(data, "client-csv")
    clients = sorted(subfolders(root), key=in_order)
    split = {name: (root / name / "train").is_dir() for name in clients}
    if len(set(split.values())) > 1:
        odd = next(name for name in clients if not split[name])
        raise ValueError(f"{root / odd}: there is no train folder, but other clients have one")
    parts = ("train", "test") if any(split.values()) else (".",)
    train, *test = (
        [(name, path) for name in clients for path in sorted((root / name / part).glob("*.csv"))]
        for part in parts
    )
    missing = [name for name in clients if name not in dict(train)]
    if missing or not clients:
        raise ValueError(f"{root / missing[0] if missing else root}: no *.csv files of a client")
    return _load(data, root, train, test[0] if test else [])


def _load(data: Data, root: Path, train: Files, test: Files) -> Dataset:
    if data.kind not in ("auto", "signal" if data.window else "table"):
        advice = "CSV files are tables; for signals, set data.window, the rows of a signal"
        raise ValueError(
            f"data.kind = {data.kind!r} is not allowed with data.window = {data.window}: {advice}"
        )
    names = root / CLASSES
    options = (data.label_column, data.owner_column, str(data.window), str(data.stride))
    paths = [path for _, path in train + test] + ([names] if names.is_file() else [])
    tensors = decoded.cached_files(
        "csv", paths, lambda: _decode(data, names, train, test), *options
    )
    fields = dict(tensors)
    classes = tuple(bytes(fields.pop("classes").tolist()).decode().split("\n"))
    return measured(root.name, classes, **fields)


@final
class _Run(NamedTuple):
    """Consecutive rows of one file with one class and one owner: values (n, columns)."""

    owner: str
    label: str
    values: np.ndarray


def _decode(data: Data, names: Path, train: Files, test: Files) -> dict[str, Tensor]:
    columns: list[str] = []
    parts = [
        [run for owner, path in files for run in _runs(data, path, owner, columns)]
        for files in (train, test)
    ]
    runs = [run for part in parts for run in part]
    classes = _classes(names, runs)
    owners = {name: i for i, name in enumerate(sorted({r.owner for r in runs}, key=in_order))}
    if test:
        samples = [[_samples(data, run) for run in part] for part in parts]
    elif data.window:
        parts = [*zip(*(_cut(run) for run in parts[0]), strict=True)]
        samples = [[_samples(data, run) for run in part] for part in parts]
    else:
        parts, samples = [parts[0]], [[run.values for run in parts[0]]]
    sides = [_tensors(*pair, classes, owners) for pair in zip(parts, samples, strict=True)]
    if len(sides) == 1:
        (whole,) = sides
        key = whole["owner"] * len(classes) + whole["y"]
        rows = holdout(key, HELD_OUT, rng(0, "csv"))
        sides = [{name: value[part] for name, value in whole.items()} for part in rows]
    for side, part in zip(sides, ("training", "testing"), strict=True):
        if not len(side["y"]):
            hint = f": no {data.window} rows in a row have one class" if data.window else ""
            raise ValueError(f"{names.parent}: no samples for {part}{hint}")
    fields = sides[0] | {f"{name}_test": value for name, value in sides[1].items()}
    if list(owners) == [""]:
        del fields["owner"], fields["owner_test"]
    elif not set(sides[0]["owner"].tolist()) >= set(sides[1]["owner"].tolist()):
        del fields["owner_test"]  # an owner has test samples only
    text = torch.tensor(list("\n".join(classes).encode()), dtype=torch.uint8)
    return {**fields, "classes": text}


def _classes(names: Path, runs: Sequence[_Run]) -> dict[str, int]:
    """Return the number of each class: in the order of ``classes.txt``, or of the names.

    Raises ``ValueError``, one line, for a class that the file lacks, and for labels that are
    numbers with fractions.
    """
    used = sorted({run.label for run in runs}, key=in_order)
    if fractions := [label for label in used if _is_fraction(label)]:
        raise ValueError(
            f"{names.parent}: the label {fractions[0]!r} is no class; regression is not supported"
        )
    check_classes(len(used) - 1, str(names.parent))
    if not names.is_file():
        return {label: i for i, label in enumerate(used)}
    check_regular(names)
    lines = read_text(names).split("\n")
    known = [line.strip() for line in lines if line.strip()]
    classes = {name: i for i, name in enumerate(known)}
    if len(classes) < len(known):
        raise ValueError(f"{names}: class {max(known, key=known.count)!r} is in it more than once")
    if unknown := [label for label in used if label not in classes]:
        raise ValueError(f"{names}: class {unknown[0]!r} of the data is not in it")
    return classes


def _is_fraction(label: str) -> bool:
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _runs(data: Data, path: Path, owner: str, columns: list[str]) -> Iterator[_Run]:
    """Yield the runs of a file; ``columns``: header of the first file, filled in by it.

    Raises ``ValueError``, one line with file and line, for values that are not finite numbers.
    """
    check_regular(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not readable as CSV ({error})") from None
    columns[:] = columns or header
    if header != columns:
        raise ValueError(
            f"{path}: its columns are {', '.join(header)}; those of the first file are "
            f"{', '.join(columns)}"
        )
    label = _position(path, header, data.label_column or "label", "label")
    by = _position(path, header, data.owner_column, "owner") if data.owner_column else None
    numbers = [i for i in range(len(header)) if i not in (label, by)]
    if not numbers:
        raise ValueError(f"{path}: no column of numbers besides {header[label]!r}")
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"{path}: row {i + 1} has {len(row)} values for {len(header)} columns")
    values = _numbers(path, header, rows, numbers)
    keys = [(owner if by is None else row[by].strip(), row[label].strip()) for row in rows]
    start = 0
    for (who, name), group in groupby(keys):
        end = start + len(list(group))
        if not name:
            raise ValueError(f"{path}: row {start + 1} has no {header[label]!r}")
        yield _Run(who, name, values[start:end])
        start = end


def _position(path: Path, header: Sequence[str], column: str, role: str) -> int:
    """Return the position of a column; raise ``ValueError``, one line, if there is none."""
    if column not in header:
        raise ValueError(
            f"{path}: no column {column!r}; data.{role}-column should be one of {', '.join(header)}"
        )
    return list(header).index(column)


def _numbers(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], chosen: Sequence[int]
) -> np.ndarray:
    """Return the ``chosen`` columns as float32 (rows, columns)."""
    try:
        with np.errstate(over="ignore"):
            exact = np.array([[float(row[i]) for i in chosen] for row in rows], dtype=np.float64)
            values: np.ndarray = exact.astype(np.float32).reshape(len(rows), len(chosen))
        if np.isfinite(values).all():
            return values
    except (ValueError, OverflowError):
        pass
    for number, row in enumerate(rows, 1):
        for i in chosen:
            if not _is_finite(row[i]):
                raise ValueError(
                    f"{path}: row {number}, column {header[i]!r}: {row[i][:40]!r} is not a finite "
                    "number"
                )
    raise AssertionError(path)


def _is_finite(text: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(text))))
    except ValueError:
        return False


def _cut(run: _Run) -> tuple[_Run, _Run]:
    """Return the first 80 % of a run's rows and the rest."""
    rows = len(run.values) - round(HELD_OUT * len(run.values))
    return run._replace(values=run.values[:rows]), run._replace(values=run.values[rows:])


def _samples(data: Data, run: _Run) -> np.ndarray:
    """Return the rows (n, F) of a table, or the windows (n, C, T) of signals."""
    if not data.window:
        return run.values
    return windows(run.values, data.window, data.stride)


def windows(values: np.ndarray, length: int, stride: int = 0) -> np.ndarray:
    """Return windows (n, C, ``length``) of rows (rows, C), one every ``stride`` rows.

    ``stride`` 0: half a window. An incomplete window at the end is left out.
    """
    step = stride or max(length // 2, 1)
    starts = range(0, len(values) - length + 1, step)
    if not starts:
        return np.empty((0, values.shape[1], length), values.dtype)
    return np.stack([values[start : start + length].T for start in starts])


def _tensors(
    runs: Sequence[_Run],
    samples: Sequence[np.ndarray],
    classes: dict[str, int],
    owners: dict[str, int],
) -> dict[str, Tensor]:
    """Return x, y and owner of one part."""
    counts = torch.tensor([len(part) for part in samples], dtype=torch.int64)

    def repeated(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).repeat_interleave(counts)

    return {
        "x": torch.from_numpy(np.concatenate(samples)),
        "y": repeated([classes[run.label] for run in runs]),
        "owner": repeated([owners[run.owner] for run in runs]),
    }
