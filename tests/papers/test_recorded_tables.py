"""The tables that are committed: each says what the summaries of its cells say.

The learning rates of ``htfl_small`` are those with the best validation scores.
"""

from collections.abc import Mapping
from statistics import fmean

import pytest

from deploy.report.table import markdown
from deploy.settings import chosen
from deploy.study import paper_table, records
from tests.papers import RESULTS, canary, place

pytestmark = pytest.mark.docs
PARTS = 4  #: several processes share the work
FOUND = sorted(path.parent.name for path in RESULTS.glob(f"*/{records.NAME}"))
RECORDED = [name for name in FOUND if not name.startswith("leaderboard_")]
every_part = pytest.mark.parametrize("part", range(PARTS))


def test_no_recorded_cell_is_lost() -> None:
    lines = {name: (RESULTS / name / records.NAME).read_bytes() for name in RECORDED}
    assert len(lines) >= 57 and sum(text.count(b"\n") for text in lines.values()) >= 4071


@every_part
def test_every_recorded_cell_is_found_by_its_fingerprint(part: int) -> None:
    for name in RECORDED[part::PARTS]:
        recorded = records.read(RESULTS / name)
        every = paper_table.cells(paper_table.read(place(name)))
        wanted = {cell.fingerprint: cell for cell in every}
        for fingerprint, one in recorded.items():
            assert one.settings == chosen(wanted[fingerprint].flat), name
            assert one.seed == wanted[fingerprint].seed == one.summary["seed"], name
        lines = (RESULTS / name / records.NAME).read_bytes().splitlines(keepends=True)
        assert lines == [one.line() for one in recorded.values()], f"{name}: not as it is written"


@every_part
def test_a_record_and_its_canaries_are_of_its_cells(part: int) -> None:
    for name in RECORDED[part::PARTS]:
        folder, file = RESULTS / name, paper_table.read(place(name))
        text = (folder / f"{name}.md").read_text()
        assert text.strip() == markdown(paper_table.collect(file, folder).table()).strip(), name
        methods = {cell.flat["method"] for cell in canary.first_cells(file)}
        recorded = canary.load(folder)
        assert len({one.where for one in recorded}) == len(recorded), name
        for one in recorded:
            assert one.digests.keys() <= methods and one.rounds in (1, 2), name


RATES, TABLE = "htfl_rates_small", "htfl_small"


def best(means: Mapping[tuple[str, float], float]) -> float:
    """Return the rate with the highest mean over partitions, the smaller one of two equal."""
    rates = sorted({rate for _, rate in means})
    over = {rate: fmean(mean for (_, one), mean in means.items() if one == rate) for rate in rates}
    return max(rates, key=lambda rate: over[rate])


def test_the_mean_over_partitions_decides() -> None:
    means = {("a", 0.1): 90.0, ("b", 0.1): 50.0, ("a", 0.01): 80.0, ("b", 0.01): 61.0}
    assert best(means) == 0.01
    assert best({("a", 0.1): 1.0, ("a", 0.03): 1.0}) == 0.03


def test_both_tables_have_the_same_rows_and_budget() -> None:
    rates, table = (paper_table.read(place(name)) for name in (RATES, TABLE))
    assert [row.name for row in rates.row] == [row.name for row in table.row]
    for cell in paper_table.cells(rates):
        assert cell.flat["data.score-on"] == "validation"
    for cell in paper_table.cells(table):
        assert cell.flat["data.score-on"] == "test"
    diverges = [
        (c.name, r.name)
        for c in rates.column
        for r in rates.row
        if r.name not in (c.rows or [r.name])
    ]
    assert diverges == [
        ("pathological, 0.3", "FedKTL"),
        *(("Dirichlet, 0.3", name) for name in ("FedTGP", "FedKTL")),
    ]
    assert len(list(paper_table.cells(rates))) == 8 * len(rates.row) - len(diverges)


def test_the_rates_have_the_best_validation_scores() -> None:
    folder, file = RESULTS / RATES, paper_table.read(place(RATES))
    if not folder.exists():
        pytest.skip(f"{RATES} is not recorded yet")
    filled, chosen = paper_table.collect(file, folder), dict[str, float]()
    for row in filled.rows:
        means = {}
        for column in file.column:
            partition, rate = column.name.split(", ")
            mean = filled.cell(row, column.name).mean
            if row in (column.rows or [row]):
                assert mean is not None, f"{row}, {column.name} is not recorded"
                means[partition, float(rate)] = mean
        whole = {key: mean for key, mean in means.items() if ("Dirichlet", key[1]) in means}
        chosen[row] = best(whole)
    cells = paper_table.cells(paper_table.read(place(TABLE)))
    assert {cell.row: cell.flat["train.lr"] for cell in cells} == chosen
