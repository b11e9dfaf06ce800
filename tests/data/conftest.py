"""The data options with harmless values: ``options(name="digits")`` overrides some."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Options:
    name: str = "toy"
    dir: str = ""
    download: bool = False
    image_size: int = 0
    samples: int = 0
    test_samples: int = 0
    partition: str = "iid"
    alpha: float = 0.5
    seed: int = 0
    test_fraction: float = 0.2
    min_size: int = 10
    niid_scale: str = "period5"
    per_client: int = 0
    augment: str = "none"
    standardize: str = "dataset"


@pytest.fixture(scope="session")
def options() -> type[Options]:
    return Options


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither find nor leave anything in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
