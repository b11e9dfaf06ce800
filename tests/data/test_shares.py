"""Whether a client has enough to train on is known without drawing its share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.config import Data
from common.data import shares

CLIENTS, SEED = 12, 3


def refused(look: Callable[[Data, int, int, int], object], data: Data) -> list[str]:
    """What ``look`` says about each client; empty where it takes it."""
    said = []
    for k in range(CLIENTS):
        try:
            look(data, k, CLIENTS, SEED)
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", ["iid", "label_dirichlet", "quantity_dirichlet", "iid_draw"])
def test_the_check_refuses_whom_the_share_refuses(name: str, fraction: float) -> None:
    settings = {"name": "toy", "samples": 90, "partition": name, "min_size": 0, "alpha": 0.3}
    data = Data.model_validate({**settings, "test_fraction": fraction}, by_name=True)
    said = refused(shares.check_share, data)
    assert said == refused(shares.share, data)
    assert any(said) or fraction < 0.9


def test_a_share_that_is_large_enough_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "share", lambda *given: pytest.fail("drawn"))
    data = Data.model_validate({"name": "toy", "samples": 90, "partition": "iid"}, by_name=True)
    assert refused(shares.check_share, data) == [""] * CLIENTS
