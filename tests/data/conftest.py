"""The data options with harmless values: ``options(name="digits")`` overrides some."""

from collections.abc import Callable
from functools import partial

import pytest

from common.settings.config import Data


@pytest.fixture(scope="session")
def options() -> Callable[..., Data]:
    return partial(Data, name="toy", partition="iid")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither find nor leave anything in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
