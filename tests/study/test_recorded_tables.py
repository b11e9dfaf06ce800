"""The tables that are committed: each says what the summaries of its cells say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.report.table import markdown
from deploy.study import canary, claims, paper_table

RECORDED = sorted(folder.parent.name for folder in claims.RESULTS.glob("*/cells"))


def test_there_are_records() -> None:
    assert len(RECORDED) >= 23


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_is_what_its_cells_say(name: str) -> None:
    folder, file = claims.RESULTS / name, paper_table.read(Path(name))
    filled = paper_table.collect(file, folder)
    told = json.loads((folder / f"{name}.json").read_text())
    assert json.loads(json.dumps(paper_table.told(filled, file))) == told
    text = (folder / f"{name}.md").read_text()
    assert text.strip() == markdown(filled.table()).strip()
    wanted = {cell.fingerprint for cell in paper_table.cells(file)}
    assert {place.name for place in (folder / "cells").iterdir()} <= wanted


@pytest.mark.parametrize("name", RECORDED)
def test_canaries_are_of_the_methods_of_their_table(name: str) -> None:
    methods = {cell.flat["method"] for cell in canary.first_cells(paper_table.read(Path(name)))}
    recorded = canary.load(claims.RESULTS / name)
    assert len({one.where for one in recorded}) == len(recorded)
    for one in recorded:
        assert one.digests.keys() <= methods and one.rounds in (1, 2)
