"""FedAvg."""

from __future__ import annotations

import torch

from common.models import build
from common.options import Average
from common.tree import parameters_only
from server_app.combine.mean import average
from tests.support.tiny import Run


def test_the_average_is_weighted_by_samples_or_not() -> None:
    net = torch.nn.Linear(1, 1, bias=False)
    states = [{"weight": torch.tensor([[2.0]])}, {"weight": torch.tensor([[6.0]])}]
    for weights, expected in (("samples", 5.0), ("uniform", 4.0)):  # (1·2 + 3·6)/4, (2 + 6)/2
        options = Average(weights=weights)
        mean = average(states, [1, 3], states[0], options, parameters_only(net))
        assert mean["weight"].item() == expected


def test_without_bn_buffers_the_server_keeps_its_own() -> None:
    net = build("mlp", (1, 2, 2), 2, seed=1)
    own = dict(net.state_dict())
    sent = {name: value + 1 for name, value in own.items()}
    options = Average(weights="samples", bn_buffers=False)
    result = average([sent], [5], own, options, parameters_only(net))
    for name in own:
        expected = own if "running" in name or "tracked" in name else sent
        assert torch.equal(result[name], expected[name]), name


def test_uniform_and_sample_weights_differ_where_sizes_differ(run: Run) -> None:
    skewed = {"method": "fedavg", "data__partition": "quantity_dirichlet", "rounds": 1}
    assert run(**skewed).weights != run(**skewed, average__weights="uniform").weights


def test_selection_is_by_partition_id_and_reproducible(run: Run) -> None:
    first, second = (run(method="fedavg", per_round=2, rounds=4) for _ in range(2))
    chosen = [entry["selected"] for entry in first.journal[1:]]
    assert chosen == [entry["selected"] for entry in second.journal[1:]]
    assert all(len(ks) == 2 and ks == sorted(ks) for ks in chosen)
    assert len({tuple(ks) for ks in chosen}) > 1
