"""The server refuses a federation that does not fit, naming the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.protocol import Peer
from common.version import code_version
from deploy.loopback import Loopback
from server_app.census import check_peers
from server_app.stopped import Stopped
from tests.conftest import flat, play

TASK = "1x8x8/3/0123456789ab"


def peer(**changes: Any) -> Peer:
    fields: dict[str, Any] = {
        "experiment": "e",
        "k": 0,
        "n": 5,
        "n_test": 0,
        "model": "mlp",
        "classes": [0],
        "counts": None,
        "task": TASK,
        "public": "p",
        "version": code_version(),
    }
    return Peer(**{**fields, **changes})


def test_a_federation_that_fits_is_welcome() -> None:
    check_peers([peer(k=1), peer()], 2, "e", TASK)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"k": 0}, "2 nodes claim to be client 0"),
        ({"k": 7}, "client 7 in a federation of 2"),
        ({"experiment": "x"}, "client 1 has experiment 'x', the server 'e'"),
        ({"version": "0.0.9"}, "client 1 has code version '0.0.9'"),
        ({"task": "u"}, "client 1 has task"),
        ({"public": "q"}, "client . has another public set"),
    ],
)
def test_a_client_that_does_not_fit_is_named(second: dict[str, Any], reason: str) -> None:
    with pytest.raises(Stopped, match=reason):
        check_peers([peer(), peer(**{"k": 1, **second})], 2, "e", TASK)


def test_missing_clients_are_waited_for_and_then_counted(tmp_path: Path) -> None:
    settings = flat(tmp_path, clients=4, wait=0.3)
    with pytest.raises(Stopped, match=r"3 of 4 clients connected within wait = 0.3 s"):
        play(settings, Loopback(3, settings, workers=0))


def test_too_many_clients_are_refused(tmp_path: Path) -> None:
    settings = flat(tmp_path, clients=2)
    with pytest.raises(Stopped, match="3 clients are connected, but clients = 2"):
        play(settings, Loopback(3, settings, workers=0))


def test_a_node_that_claims_another_ones_partition_is_refused(tmp_path: Path) -> None:
    settings = flat(tmp_path)
    grid = Loopback(4, settings, workers=0, node_configs={2: {"partition-id": 1}})
    with pytest.raises(Stopped, match="2 nodes claim to be client 1"):
        play(settings, grid)


def test_a_node_brings_its_own_model(tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedorion", rounds=1)
    result = play(settings, Loopback(4, settings, workers=0, node_configs={1: {"model": "lenet5"}}))
    models = [client["model"] for client in result.summary["clients"]]
    assert models == ["mlp@0.25", "lenet5", "mlp@0.25", "cnn2@0.5"]


def test_a_node_with_an_impossible_model_is_refused_by_name(tmp_path: Path) -> None:
    settings = flat(tmp_path)
    grid = Loopback(4, settings, workers=0, node_configs={3: {"model": "resnet99"}})
    with pytest.raises(Stopped, match="no architecture 'resnet99'"):
        play(settings, grid)
