"""FedORION's further switches: kinds of noise (Table 4) and the share that skips DML (Figure 3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.tiny import TinyRun

pytestmark = pytest.mark.full

FLEET = {"fleet": "mlp@0.25,cnn2@0.5,cnn3@0.25,cnn2@0.5", "global_model": "mlp@0.25"}


def architectures(run: TinyRun) -> list[str]:
    return [client["model"] for client in run.journal[0]["clients"]]


@pytest.mark.parametrize(("share", "size"), [(0.1, 0), (0.125, 1), (0.5, 2), (0.75, 3)])
def test_a_share_is_rounded_to_clients(
    share: float, size: int, run: Callable[..., TinyRun]
) -> None:
    fleet = {"fleet": "cnn2@0.5", "global_model": "mlp@0.25", "rounds": 1}
    models = architectures(run(method="fedorion", **fleet, fedorion__skip_share=share))
    assert models.count("mlp@0.25") == size


def test_who_skips_at_a_share_skips_at_a_larger_one(run: Callable[..., TinyRun]) -> None:
    fleet = {"fleet": "cnn2@0.5", "global_model": "mlp@0.25", "rounds": 1}
    skipping = [
        {
            k
            for k, model in enumerate(
                architectures(run(method="fedorion", **fleet, fedorion__skip_share=share))
            )
            if model == "mlp@0.25"
        }
        for share in (0.25, 0.5, 0.75)
    ]
    assert skipping[0] < skipping[1] < skipping[2]
