"""Every cell of DL-MH's tables is a run that could start."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import parse
from common.data import DATASETS
from common.fleet import check_fleet
from deploy import table
from deploy.settings import EXPERIMENTS

CINIC10 = ((3, 32, 32), 10)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("dl_*.toml")), ids=lambda path: path.stem)
def test_every_cell_parses_and_its_models_take_the_images(path: Path):
    cells = list(table.cells(table.read(path)))
    for cell in cells:
        config = parse(cell.flat)
        source = DATASETS[config.data.name]
        check_fleet(config, source.shape or CINIC10[0], source.classes or CINIC10[1])
    assert len(cells) >= 40


def test_dl_mh_and_its_incentive_share_one_run_per_column():
    cells = list(table.cells(table.read(EXPERIMENTS / "dl_small.toml")))
    assert len({cell.fingerprint for cell in cells}) == 8 * 4 < len(cells)
