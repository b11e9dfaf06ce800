"""Some cells of a table, to be run by themselves: here now, or elsewhere."""

from collections.abc import Sequence

from deploy.study.paper_table import CellRun, TableFile, cells


def part(
    file: TableFile, rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]
) -> list[CellRun]:
    """The table's cells in these rows and columns with these seeds; of each kind none named: all.

    Raises ``ValueError`` for what the table does not have.
    """
    every = list(cells(file))
    _check("--row", rows, [row.name for row in file.row])
    _check("--column", columns, [column.name for column in file.column])
    _check("--seed", seeds, sorted({cell.seed for cell in every}))
    kept = [
        cell
        for cell in every
        if cell.row in (rows or [cell.row])
        and cell.column in (columns or [cell.column])
        and cell.seed in (seeds or [cell.seed])
    ]
    if not kept:
        raise ValueError(f"{' '.join(options(rows, columns, seeds))}: there is no such cell")
    return kept


def _check(option: str, named: Sequence[object], there: Sequence[object]) -> None:
    for one in named:
        if one not in there:
            known = ", ".join(repr(it) if "," in str(it) else str(it) for it in there)
            raise ValueError(f"{option} {one} is not in this table; it has: {known}")


def options(rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """The words of a command line that name these."""
    named = {"--row": rows, "--column": columns, "--seed": seeds}
    return [word for option, some in named.items() for one in some for word in (option, str(one))]
