"""Some rows, columns and seeds of a table file, to be run by themselves: here now, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.study.paper_table import Line, TableFile


def part(
    file: TableFile, rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]
) -> TableFile:
    """The table of these rows, columns and seeds; of each kind none named: all.

    Its cells are cells of the whole table, under the same fingerprints. What compares rows is left
    out, since the other row may be.

    Raises ``ValueError`` for what the table does not have.
    """
    _check("--row", rows, [row.name for row in file.row])
    _check("--column", columns, [column.name for column in file.column])
    of = {row.name: row.seeds or file.seeds for row in file.row}
    _check("--seed", seeds, sorted({seed for own in of.values() for seed in own}))
    kept = [
        row.model_copy(update={"against": "", "seeds": own})
        for row in _named(file.row, rows)
        if (own := [seed for seed in of[row.name] if seed in seeds or not seeds])
    ]
    if not kept:
        names, numbers = ", ".join(rows), ", ".join(map(str, seeds))
        raise ValueError(f"--row {names} --seed {numbers}: there is no such cell")
    across = list(_columns(_named(file.column, columns), [row.name for row in kept]))
    if not across:
        about = ", ".join(dict.fromkeys(n for c in _named(file.column, columns) for n in c.rows))
        raise ValueError(
            f"--row {', '.join(rows)} --column {', '.join(columns)}: there is no such cell; "
            f"such columns are about {about} alone"
        )
    return file.model_copy(update={"row": kept, "column": across, "expected": {}})


def _named(lines: Sequence[Line], names: Sequence[str]) -> list[Line]:
    return [line for line in lines if line.name in names or not names]


def _columns(columns: Sequence[Line], kept: Sequence[str]) -> Iterator[Line]:
    """The columns that are about one of the rows ``kept``."""
    for column in columns:
        about = [name for name in column.rows if name in kept]
        if about or not column.rows:
            yield column.model_copy(update={"reach": "", "rows": about})


def _check(option: str, named: Sequence[object], there: Sequence[object]) -> None:
    for one in named:
        if one not in there:
            known = ", ".join(
                repr(it) if isinstance(it, str) and "," in it else str(it) for it in there
            )
            raise ValueError(f"{option} {one} is not in this table; it has: {known}")


def options(rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """The words of a command line that name these."""
    named = {"--row": rows, "--column": columns, "--seed": seeds}
    return [word for option, some in named.items() for one in some for word in (option, str(one))]
