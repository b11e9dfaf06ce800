"""What all tests share: one torch thread, Flower's telemetry off, tiny runs on loopback."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FEDMOSAIC_LEDGER"] = "state-dir"  # no test writes to the ledger of this machine

import pytest
import torch

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # no test cuts the power, and a run would wait for 19 writes

from common.settings.config import Data
from tests.support import rehearsal
from tests.support.tiny import Run, TinyRun, flat, play

ROOT = Path(__file__).parents[1]
METHODS = Path(__file__).parent / "methods"
TRAIN = {"run", "played"}  #: fixtures that train
RARE = {"exhaustive", "faults", "hostile", "containers"}
"""Marks of tests that are collected only if ``-m`` names their mark, or is empty."""


def is_left_out(config: pytest.Config, marks: Iterable[pytest.Mark]) -> bool:
    """Return whether tests with these marks are rare and not asked for."""
    asked = str(config.getoption("markexpr"))
    named = set(re.findall(r"(?<!not )\b\w+", asked)) if asked else RARE
    return bool({mark.name for mark in marks} & RARE - named)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Leave out rare functions and modules before their cases are made."""
    marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", [])]
    return [] if callable(obj) and is_left_out(collector.config, marks) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out rare cases: ``pytest.param(..., marks=pytest.mark.exhaustive)`` in a list."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if isinstance(values := mark.args[1], list):
            values[:] = [
                value
                for value in values
                if not is_left_out(metafunc.config, getattr(value, "marks", ()))
            ]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of single methods that ask for a run as `full`: the battery trains as well."""
    for item in items:
        trains = METHODS in item.path.parents and TRAIN & {*getattr(item, "fixturenames", ())}
        if trains and not {"full", "exhaustive"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.full)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rehearsal", action="store_true", help="the battery on the device of rehearsal.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    installed = importlib.util.find_spec("fedmosaic")
    if installed is None or ROOT not in Path(installed.origin or "/").resolve().parents:
        where = installed.origin if installed else "nowhere"
        here = (
            f"the installed fedmosaic is {where}, not that of {ROOT}, and tests start its command"
        )
        how = "make test uses an environment of this checkout's own"
        raise pytest.UsageError(f"{here}: {how}")
    if config.getoption("--rehearsal"):
        rehearsal.device()


@pytest.fixture(scope="module")
def at_hand(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--rehearsal`` everything is computed on that device."""
    with rehearsal.rehearsing() if request.config.getoption("--rehearsal") else nullcontext():
        yield


@pytest.fixture(scope="session")
def options() -> Callable[..., Data]:
    """[data] with harmless values: ``options(name="digits")`` overrides some."""
    return partial(Data, name="toy", partition="iid")


@pytest.fixture(autouse=True)
def cache_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of data neither find nor leave anything in the user's cache."""
    if METHODS.parent / "data" in request.path.parents:
        made: Path = request.getfixturevalue("tmp_path_factory").mktemp("cache")
        monkeypatch.setenv("XDG_CACHE_HOME", str(made))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(method="fedavg", data__alpha=0.1)``: a tiny run in a folder of its own."""
    count = iter(range(1000))

    def go(**changes: Any) -> TinyRun:
        return play(flat(tmp_path / f"run{next(count)}", **changes))

    return go


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same for runs that are only read: equal settings are played once a session."""

    @cache
    def go(**changes: Any) -> TinyRun:
        return play(flat(tmp_path_factory.mktemp("played"), **changes))

    return go
