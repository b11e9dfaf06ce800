"""The tables that are committed: each says what the summaries of its cells say."""

import json

import pytest

from deploy.report.table import markdown
from deploy.run.settings import chosen
from deploy.study import paper_table, records
from tests.papers import RESULTS, canary, place
from tests.support.battery import tiers

FOUND = sorted(path.parent.name for path in RESULTS.glob(f"*/{records.NAME}"))
RECORDED = [name for name in FOUND if not name.startswith("leaderboard_")]
FIRST = ("dl_flops_small", "fedkf_generator_small", "fedorion_small")
every_table = pytest.mark.parametrize("name", tiers(RECORDED, FIRST))


def test_no_recorded_cell_is_lost() -> None:
    lines = {name: (RESULTS / name / records.NAME).read_bytes() for name in RECORDED}
    assert len(lines) >= 57 and sum(text.count(b"\n") for text in lines.values()) >= 4071


@every_table
def test_every_recorded_cell_is_found_by_its_fingerprint(name: str) -> None:
    recorded = records.read(RESULTS / name)
    every = paper_table.cells(paper_table.read(place(name)))
    wanted = {cell.fingerprint: cell for cell in every}
    for fingerprint, one in recorded.items():
        assert one.settings == chosen(wanted[fingerprint].flat)
        assert one.seed == wanted[fingerprint].seed == one.summary["seed"]
    lines = (RESULTS / name / records.NAME).read_bytes().splitlines(keepends=True)
    assert lines == [one.line() for one in recorded.values()], "a line a cell, as it is written"


@every_table
def test_a_record_and_its_canaries_are_of_its_cells(name: str) -> None:
    folder, file = RESULTS / name, paper_table.read(place(name))
    filled = paper_table.collect(file, folder)
    told = json.loads((folder / f"{name}.json").read_text())
    assert json.loads(json.dumps(paper_table.as_json(filled, file))) == told
    text = (folder / f"{name}.md").read_text()
    assert text.strip() == markdown(filled.table()).strip()
    methods = {cell.flat["method"] for cell in canary.first_cells(file)}
    recorded = canary.load(folder)
    assert len({one.where for one in recorded}) == len(recorded)
    for one in recorded:
        assert one.digests.keys() <= methods and one.rounds in (1, 2)
