"""The tables that are committed: each says what the summaries of its cells say."""

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
