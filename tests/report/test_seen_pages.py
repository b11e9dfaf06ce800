"""A comparison, a report and a table in a browser: sorting, contrast, and the width of a phone."""

import shutil
from pathlib import Path

import pytest

from deploy.report.pages import write_report
from deploy.run.settings import EXPERIMENTS
from deploy.study import paper_table
from tests.papers import RESULTS
from tests.support.browser import PROGRAM, Browser, check_look
from tests.support.run_folder import finished

TABLE = EXPERIMENTS / "averaging_small.toml"
RECORD = RESULTS / "averaging_small" / "cells.jsonl"


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """A report, a comparison of three runs, and a recorded table as pages."""
    methods = ("fedkf", "fedavg", "fedprox")
    runs = [finished(tmp_path / m, method=m, seed=i) for i, m in enumerate(methods, start=1)]
    write_report(runs[:1], tmp_path / "one.html")
    write_report(runs, tmp_path / "several.html")
    shutil.copy(RECORD, tmp_path)
    file = paper_table.read(TABLE)
    paper_table.write(paper_table.collect(file, tmp_path), file, tmp_path, "table")
    return [tmp_path / name for name in ("one.html", "several.html", "table.html")]


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_readable(pages: list[Path], tmp_path: Path, scheme: str) -> None:
    addresses = {f"report-{page.stem}": page.as_uri() for page in pages}
    check_look(addresses, tmp_path / "profile", scheme)


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_the_results_of_a_comparison_can_be_sorted(pages: list[Path], tmp_path: Path) -> None:
    rows = "[...document.querySelectorAll('table')[0].tBodies[0].rows]"
    names = f"{rows}.map(row => row.cells[0].textContent)"
    with Browser(pages[1].as_uri(), tmp_path / "profile") as shown:
        assert shown.value(names) == ["fedkf", "fedavg", "fedprox"]
        button = "document.querySelector('thead button')"
        shown.value(f"{button}.click()")
        assert shown.value(names) == ["fedprox", "fedkf", "fedavg"]
        shown.value(f"{button}.click()")
        assert shown.value(names) == ["fedavg", "fedkf", "fedprox"]
        texts = ["4.58 MB", "900 kB", "3 min 20 s", "–", "93.1 %", "1,234", "2 / 3"]
        cell = "cellValue({cells: [{textContent: '%s'}]}, 0)"
        values = [shown.value(cell % text) for text in texts]
        assert values == [4.58e6, 9e5, 200, None, 93.1, 1234, 2] and shown.errors == []
