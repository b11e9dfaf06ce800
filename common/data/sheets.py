"""Tables in files, read in blocks: CSV as programs write it, JSON Lines, and Parquet.

The separator is the one of ``,``, ``;`` and tab that the first line has most often. Where it is no
comma, numbers may have decimal commas, if none of the file has a decimal point. Blocks bound the
memory that the text of a file takes.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np

from common.data.spelling import flags
from common.extras import imported
from common.files import check_regular, parse_json
from common.measures import ObjectiveName

TEXT = (".csv", ".tsv")
PARQUET, JSONL = ".parquet", ".jsonl"
LEAVE_OUT = "; data.ignore-columns leaves columns out"  #: advice for features in errors
SUFFIXES = (*TEXT, JSONL, PARQUET)
SEPARATORS = (",", ";", "\t")
csv.field_size_limit(2**27)  # bytes of a text in a row; Python's own limit is 2¹⁷
BLOCK = 2**12  #: values of a block; more are slower, because they leave the cache
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names under which pandas writes its row numbers."""

Columns = Sequence[Sequence[object]]


@final
class Sheet:
    """One file: its ``header``, at most ``rows`` rows, and their values as ``blocks``.

    ``is_used``: whether a column matters; others of JSON Lines may be missing, new or nested.
    Raises ``ValueError``, one line with the file, if it cannot be read.
    """

    def __init__(self, path: Path, is_used: Callable[[str], bool] = lambda name: True) -> None:
        check_regular(path)
        self.path, self._is_used = path, is_used
        self.decimals = dict[str, str]()  # "." and "," to where a number has it first
        self._form = path.suffix.lower()
        if self._form == PARQUET:
            self.separator = ","
            with _readable(path, "Parquet"):
                self._parquet = imported("pyarrow.parquet").ParquetFile(path)
            self.header = list(self._parquet.schema_arrow.names)
            self.rows = int(self._parquet.metadata.num_rows)
        else:
            self.header, self.separator, self.rows = self._look()
        if double := [name for name in self.header if name and self.header.count(name) > 1]:
            raise ValueError(f"{path}: two columns are called {double[0]!r}")

    def _look(self) -> tuple[list[str], str, int]:
        """Return the header, the separator, and a bound of the number of rows."""
        with _readable(self.path, "CSV"), open(self.path, "rb") as binary:
            blocks = iter(lambda: binary.read(2**20), b"")
            lines = 1 + sum(block.count(b"\n") + block.count(b"\r") for block in blocks)
        if self._form == JSONL:
            return [*next(self._objects(), {})], ",", lines
        with (
            _readable(self.path, "CSV"),
            open(self.path, newline="", encoding="utf-8-sig") as file,
        ):
            first = next((line for line in file if line.strip()), "")
            separator = max(SEPARATORS, key=first.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=separator, strict=True)
            header = next((row for row in rows if row), [])
        return [name.strip() for name in header], separator, lines

    def blocks(self) -> Iterator[tuple[int, Columns]]:
        """Yield the number of the first row of a block, from 1 on, and the columns' values.

        Raises ``ValueError``, one line with file and row, for a row of another length.
        """
        size = max(BLOCK // max(len(self.header), 1), 1)
        if self._form == PARQUET:
            first, batches = 1, self._parquet.iter_batches(batch_size=size)
            while True:
                with _readable(self.path, "Parquet"):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield first, [column.to_pylist() for column in batch.columns]
                first += batch.num_rows
        if self._form == JSONL:
            first, objects = 1, self._objects()
            while rows_of := [[*row.values()] for row in islice(objects, size)]:
                yield first, list(zip(*rows_of, strict=True))
                first += len(rows_of)
            return
        with open(self.path, newline="", encoding="utf-8-sig") as file:
            rows = (row for row in csv.reader(file, delimiter=self.separator, strict=True) if row)
            first = 0  # the header
            while True:
                with _readable(self.path, "CSV"):
                    block = list(islice(rows, size if first else 1))
                if not block:
                    return
                for i, row in enumerate(block, first):
                    if len(row) != len(self.header):
                        raise ValueError(
                            f"{self.path}: row {i} has {len(row)} values for "
                            f"{len(self.header)} columns"
                        )
                if first:
                    yield first, list(zip(*block, strict=True))
                first += len(block)

    def _objects(self) -> Iterator[dict[str, object]]:
        """Yield the JSON object of each line, with the keys of the first one in their order.

        Raises ``ValueError``, one line with file and row, for anything but an object, and in used
        columns for other values than texts and numbers, or for other keys than the first one's.
        """
        header: list[str] = []
        with open(self.path, "rb") as file:
            for i, line in enumerate(filter(bytes.strip, file), 1):
                row = self._row(line, i)
                header = header or [*row]
                if any(map(self._is_used, row.keys() ^ {*header})):
                    raise ValueError(
                        f"{self.path}: row {i} has the columns {', '.join(row)}; those of row 1 "
                        f"are {', '.join(header)}"
                    )
                yield {name: row.get(name) for name in header}

    def _row(self, line: bytes, i: int) -> dict[str, object]:
        """Return the JSON object of line ``i``."""
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{self.path}: row {i} is no JSON ({error})") from None
        if not isinstance(row, dict) or not row:
            raise ValueError(f"{self.path}: row {i} is no JSON object")
        for name, value in row.items():
            if isinstance(value, dict | list) and self._is_used(name):
                raise ValueError(
                    f"{self.path}: row {i}, column {name!r}: a list or an object is no value"
                )
        return row

    def targets(
        self, columns: Columns, names: Sequence[str], row: int, objective: ObjectiveName
    ) -> np.ndarray:
        """Return the labels or numbers to learn in a block, float32 (n, D); ``row``: its first.

        Raises ``ValueError``, one line with file, row and column, for other values.
        """
        cells = [(columns[self.header.index(name)], name) for name in names]
        if objective == "labels":
            y = [flags(values, name, f"{self.path}: row", row) for values, name in cells]
        else:
            y = [self.numbers(values, name, row, "") for values, name in cells]
        return np.stack(y, 1)

    def numbers(
        self, values: Sequence[object], column: str, row: int, advice: str = LEAVE_OUT
    ) -> np.ndarray:
        """Return values of a column as float32; ``row``: number of the first.

        Raises ``ValueError``, one line with file, row and column, for a value that is no finite
        number.
        """
        if self.separator != ",":
            values = [self._with_point(value, column, row + i) for i, value in enumerate(values)]
        try:
            with np.errstate(over="ignore"):
                exact = np.fromiter(map(float, values), np.float64, len(values))  # type: ignore[arg-type]
                found = exact.astype(np.float32)
            if np.isfinite(found).all():
                return found
        except (ValueError, TypeError, OverflowError):
            pass
        i = next(i for i, value in enumerate(values) if not _is_finite(value))
        shown = "an empty value" if values[i] in (None, "") else repr(str(values[i])[:40])
        raise ValueError(
            f"{self.path}: row {row + i}, column {column!r}: {shown} is not a finite number{advice}"
        )

    def _with_point(self, value: object, column: str, row: int) -> object:
        """Return a number's text with a decimal point; raise ``ValueError`` for a mixed file."""
        text = str(value)
        for mark in ",.":
            if mark in text:
                self.decimals.setdefault(mark, f"row {row}, column {column!r}: {text[:40]!r}")
        if len(self.decimals) > 1:
            commas, points = self.decimals[","], self.decimals["."]
            raise ValueError(
                f"{self.path}: {commas} has a decimal comma, but {points} has a decimal point"
            )
        return text.replace(",", ".", 1)


@contextmanager
def _readable(path: Path, form: str) -> Iterator[None]:
    """Convert the errors of a reader into a ``ValueError``, one line with the file."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, csv.Error) as error:
        advice = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: not readable as {form} ({reason}){advice}") from None


def _is_finite(value: object) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(value))))  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return False


def unused(
    header: Sequence[str], roles: Sequence[str], chosen: str, where: object
) -> dict[str, str]:
    """Return the columns that are no features, each with the reason; ``roles``: label and owner.

    Raises ``ValueError``, one line, for a name in ``chosen`` that is no column.
    """
    reasons = {}
    for name in filter(None, map(str.strip, chosen.split(","))):
        if name not in header:
            raise ValueError(
                f"{where}: data.ignore-columns names {name!r}; the columns are {', '.join(header)}"
            )
        reasons[name] = "data.ignore-columns"
    for name in header:
        if name not in roles and ROW_NUMBERS.fullmatch(name):
            reasons.setdefault(name, "a row number" if name else "a row number without a name")
    return {name: why for name, why in reasons.items() if name not in roles}
