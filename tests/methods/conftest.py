"""Tests of single methods: what is computed by hand is for `make test`, whole runs are not."""

from pathlib import Path

import pytest

RUNS = {"run", "played"}  #: fixtures that train
TIERS = {"full", "exhaustive"}


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that ask for a run as `full`: the battery trains as well."""
    for item in items:
        here = Path(__file__).parent in item.path.parents
        trains = not RUNS.isdisjoint(getattr(item, "fixturenames", ()))
        if here and trains and TIERS.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.full)
