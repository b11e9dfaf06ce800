"""LG-FedAvg: local training and FedAvg at its edges, and the score of the newest head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from client_app.participant import Participant, upload
from common.methods import lg_fedavg
from common.settings.parse import parse
from tests.support.tiny import Run, flat, play
from tests.support.weights import own_models, same

LG: dict[str, Any] = {"method": "lg-fedavg", "feature_dim": 16}
UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}


def test_one_client_whose_first_head_the_server_has_trains_locally(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, fleet="cnn2@0.25"))
    first = Participant(config, {"partition-id": 0}, "test").model("cnn2@0.25")
    save_file(upload(first), file := tmp_path / "first.safetensors")
    given = {"fleet": "cnn2@0.25", "clients": 1, "weights": str(file)}
    lg, local = (
        play(flat(tmp_path / method, method=method, **given)) for method in ("lg-fedavg", "local")
    )
    assert same(own_models(lg, 2)[0], own_models(local, 2)[0])
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
    assert same(everything.model, fedavg.model)


def test_the_head_is_the_mean_by_samples(played: Run) -> None:
    run = played(**LG, **UNEVEN)
    sizes = [client["n"] for client in run.journal[0]["clients"]]
    assert len(set(sizes)) > 1
    heads = [own_models(run, 2)[k]["head.weight"].double() for k in range(4)]
    mean = sum(n * head for n, head in zip(sizes, heads, strict=True)) / sum(sizes)
    torch.testing.assert_close(run.model["weight"], mean.float(), rtol=0, atol=1e-7)
