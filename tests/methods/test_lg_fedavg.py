"""LG-FedAvg: local training and FedAvg at its edges, and the score of the newest head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from client_app.bases.own_model import ClientState
from client_app.participant import Participant, upload
from common.exchange.records import StateDict
from common.methods import lg_fedavg
from common.settings.parse import parse
from common.training.task import check_fleet
from tests.support.halves import task
from tests.support.scalar import kept
from tests.support.tiny import Run, TinyRun, flat, play

LG: dict[str, Any] = {"method": "lg-fedavg", "feature_dim": 16}
UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}


def own_model(run: TinyRun, k: int) -> StateDict:
    return ClientState.load(kept(run.folder, 2, k, ClientState.kind)).local


def equal(a: StateDict, b: StateDict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_one_client_whose_first_head_the_server_has_trains_locally(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, fleet="cnn2@0.25"))
    first = Participant(config, {"partition-id": 0}, "test").model("cnn2@0.25")
    save_file(upload(first), file := tmp_path / "first.safetensors")
    given = {"fleet": "cnn2@0.25", "clients": 1, "weights": str(file)}
    lg, local = (
        play(flat(tmp_path / method, method=method, **given)) for method in ("lg-fedavg", "local")
    )
    assert equal(own_model(lg, 0), own_model(local, 0))
    assert lg.journal[2]["client_metrics"] == local.journal[2]["client_metrics"]


def test_it_is_fedavg_if_all_layers_are_shared(
    tmp_path: Path, played: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"fleet": "cnn2@0.25", **UNEVEN}
    fedavg = played(method="fedavg", **given)
    head = play(flat(tmp_path / "head", method="lg-fedavg", **given))
    assert head.model.keys() == {"weight", "bias"}
    monkeypatch.setattr(lg_fedavg, "shared", lambda net: net)
    everything = play(flat(tmp_path / "all", method="lg-fedavg", **given))
    assert equal(everything.model, fedavg.model)


def test_a_client_scores_its_features_with_the_newest_head(played: Run) -> None:
    run = played(**LG)
    for k, (score,) in enumerate(zip(run.journal[-1]["scores"], strict=True)):
        config = parse(flat(run.folder / "other", **LG))
        p = Participant(config, {"partition-id": k}, "test")
        net = p.model(p.spec, own_model(run, k))
        trained = p.accuracy(net)
        net.head.load_state_dict(run.model)
        assert score["accuracy"] == score["accuracy_global"] == p.accuracy(net)
        assert not torch.equal(own_model(run, k)["head.weight"], run.model["weight"])
        assert trained is not None
    assert run.summary["accuracy"] is None


def test_only_heads_travel(played: Run) -> None:
    """4 (K + 1) C bytes each way for each of four clients."""
    run = played(**LG, rounds=3, score__every=3)
    moved = run.journal[2]["bytes"]
    assert moved["arrays_up"] == moved["arrays_down"] == 4 * 4 * (16 + 1) * 3


def test_the_head_is_the_mean_by_samples(played: Run) -> None:
    run = played(**LG, **UNEVEN)
    sizes = [client["n"] for client in run.journal[0]["clients"]]
    assert len(set(sizes)) > 1
    heads = [own_model(run, k)["head.weight"].double() for k in range(4)]
    mean = sum(n * head for n, head in zip(sizes, heads, strict=True)) / sum(sizes)
    torch.testing.assert_close(run.model["weight"], mean.float(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"fleet": "cnn2@0.5,mlp@0.5"},
            'method = "lg-fedavg" needs a common number of features, but cnn2@0.5 has 32 and',
        ),
        ({"fleet": "cnn4-exits2@0.5"}, 'method = "lg-fedavg" needs one head; cnn4-exits2@0.5 has'),
        ({**LG, "average__robust": "krum"}, 'average.robust = "krum" is not allowed with'),
        ({**LG, "oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed with'),
        ({**LG, "privacy__mode": "central"}, 'privacy.mode = "central" is not allowed with'),
        ({**LG, "method": "fedkd", "average__robust": "fltrust"}, 'average.robust = "fltrust" is'),
    ],
)
def test_what_does_not_suit_it_is_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_fleet(task(**{"method": "lg-fedavg", **changes}))
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
