"""Bytes of a round's arrays, by hand: what a method requests, and what its clients send."""

from typing import Any

import pytest

from common.techniques.noise import LATENT
from tests.support.tiny import Run

ROW = 4 * (16 + 1)  #: bytes of the head's row of a class for 16 features
TABLE = 4 * 9 + 8 * 3  #: bytes of a table of three rows of three numbers, and of its counts
IMAGES = 3 * 8 * 8 + 4 * (3 * LATENT)  #: of an image and a vector for each class
UNEVEN = {"data__partition": "label_dirichlet", "data__alpha": 0.3, "data__min_size": 4}
WIDE = {"feature_dim": 16}
BY_HAND: dict[str, tuple[dict[str, Any], int, int]] = {
    "local": ({}, 0, 0),
    "lg-fedavg": (WIDE, 4 * ROW * 3, 4 * ROW * 3),
    "fedktl": ({"fedktl__server_epochs": 5, "train__clip": 5.0}, 4 * IMAGES, 4 * TABLE),
    "fedl2g": ({"fedl2g__warm_up": 1, "train__batch_size": 8}, 4 * (4 * 9 + 3), 4 * TABLE),
}
"""Settings, bytes of round 2 to all of the four clients, and bytes from them."""
W: dict[str, dict[str, Any]] = {
    **{"ditto": {"fleet": "mlp@0.25"}, "fedmrl": {"global_model": "cnn2@0.25"}, "pfedmoe": WIDE},
    **{"fml": {}, "fedper": {}, "fedbn": {"fleet": "cnn2@0.5"}},
}
"""Settings of methods whose clients get and send as many bytes as the run's model has."""


def arrays(run: Any) -> tuple[int, int]:
    """Return the bytes of round 2, which has no scores, to the clients and from them."""
    moved = run.journal[2]["bytes"]
    return moved["arrays_down"], moved["arrays_up"]


@pytest.mark.parametrize("method", BY_HAND)
def test_a_round_has_the_bytes_that_are_counted_by_hand(method: str, played: Run) -> None:
    settings, down, up = BY_HAND[method]
    run = played(method=method, rounds=3, score__every=3, **settings)
    assert arrays(run) == (down, up)
    assert method != "fedktl" or run.journal[1]["bytes"]["arrays_down"] == 0


@pytest.mark.parametrize("method", W)
def test_the_shared_model_alone_travels(method: str, played: Run) -> None:
    run = played(method=method, rounds=3, score__every=3, share_counts=False, **W[method])
    assert arrays(run) == (4 * sum(w.nbytes for w in run.model.values()),) * 2
    shared = {name for name in run.model if not name.startswith("head.")}
    assert method not in ("fedper", "pfedmoe") or run.model.keys() == shared
    assert method != "fedbn" or not any("bn." in name for name in run.model)


def test_a_client_of_fedssa_sends_the_rows_of_its_classes(played: Run) -> None:
    run = played(method="fedssa", rounds=3, score__every=3, **WIDE, **UNEVEN)
    held = [sum(n > 0 for n in one["counts"]) for one in run.journal[0]["clients"]]
    assert min(held) < 3 and arrays(run) == (4 * 3 * ROW, sum(held) * ROW)
