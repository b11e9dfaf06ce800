"""What a node may set for itself, and what training on a client may be asked to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_app.participant import Participant
from common import models
from common.config import Value
from common.parse import parse
from tests.support.tiny import TinyRun, flat


def participant(tmp_path: Path, node: dict[str, Value], **changes: Any) -> Participant:
    config = parse(flat(tmp_path, **changes))
    return Participant(config, {"partition-id": 1, "num-partitions": 4, **node}, "e")


def test_the_fleet_is_dealt_out_by_partition_id(tmp_path: Path) -> None:
    specs = [participant(tmp_path, {"partition-id": k}).spec for k in range(4)]
    assert specs == ["mlp@0.25", "cnn2@0.5", "mlp@0.25", "cnn2@0.5"]


def test_a_node_names_its_own_model_and_state_folder(tmp_path: Path) -> None:
    p = participant(tmp_path, {"model": "lenet5", "state-dir": str(tmp_path / "mine")})
    assert p.spec == "lenet5" and p._state_dir == tmp_path / "mine"


def test_a_nodes_own_data_need_no_partition(tmp_path: Path) -> None:
    whole = participant(tmp_path, {}, data__partition="own", data__test_fraction=0.25)
    assert (whole.n, whole.n_test) == (90, 30)


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"partition-id": -1}, "node config partition-id = -1"),
        ({"partition-id": "0"}, "node config partition-id = '0'"),
        ({"partition-id": 4}, "partition-id = 4, but the federation has 4"),
        ({"device": "cuda:9"}, 'device = "cuda:9" is not here'),
    ],
)
def test_a_node_that_cannot_be_a_client_is_refused(
    node: dict[str, Value], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=line):
        participant(tmp_path, node)


def test_a_clients_shares_are_disjoint_and_make_up_its_part(tmp_path: Path) -> None:
    p = participant(tmp_path, {}, data__test_fraction=0.2)
    train, test = (set(rows.tolist()) for rows in (p._share.train, p._share.test))
    assert not train & test and (len(train), len(test)) == (24, 6)
    assert sum(p.counts) == p.n == 24


def test_bf16_learns_and_repeats_bit_for_bit(run: Callable[..., TinyRun]) -> None:
    settings = {"method": "fedavg", "precision": "bf16", "rounds": 3}
    first, second = run(**settings), run(**settings)
    assert first.weights == second.weights and first.summary["accuracy"]["final"] > 0.5
    assert first.weights != run(**settings | {"precision": "fp32"}).weights


def test_only_models_with_published_weights_are_pretrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, bool] = {}
    build = models.build

    def noting(spec: str, *args: Any, pretrained: bool = False, **kwargs: Any) -> Any:
        asked[spec] = pretrained
        return build(spec, *args, **kwargs)

    monkeypatch.setattr(models, "build", noting)
    p = participant(tmp_path, {}, pretrained=True)
    for spec in ("mlp", "resnet18", "resnet18@0.25"):
        p.model(spec)
    assert asked == {"mlp": False, "resnet18": True, "resnet18@0.25": False}
    p.model("resnet18", dict(build("resnet18", (1, 8, 8), 3, seed=1).state_dict()))
    assert asked["resnet18"] is False


def test_a_preset_names_a_fleet(tmp_path: Path) -> None:
    assert participant(tmp_path, {}, fleet="l-het").spec == "shufflenetv2"
