"""HtFLlib's own code gives the same weights: ``HTFLLIB=~/HtFLlib pytest -m docs FILE``."""

from pathlib import Path
from typing import Any

import pytest

from tests.papers import htfllib

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(
        not htfllib.CHECKOUT, reason="HTFLLIB names no checkout of github.com/TsingZ0/HtFLlib"
    ),
]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local": ({}, {}),
    "fedproto": ({"fedproto.lambda-term": 10.0, "fedproto.predict": "prototype"}, {"lamda": 10.0}),
    "fml": (
        {"fml.kl": "mean", "fml.detach": False, "train.clip": 10.0},
        {"alpha": 0.5, "beta": 0.5},
    ),
    "fd": ({"fd.distance": "raw"}, {"lamda": 1.0}),
    "lg-fedavg": ({}, {}),
}
"""Our settings and HtFLlib's, by method."""


@pytest.mark.parametrize("method", CASES)
def test_three_rounds_of_htfllibs_code_give_our_weights(method: str, tmp_path: Path) -> None:
    compared = htfllib.compare(method, tmp_path, *CASES[method])
    print(f"\n{method}: {compared}")
    assert compared.moved > 0.01
    assert compared.weights < 1e-4  # rounding, which ResNets with small batches amplify
    assert compared.accuracy < 0.01
