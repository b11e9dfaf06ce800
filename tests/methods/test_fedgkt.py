"""FedGKT: what travels, what is refused, what a round teaches."""

from typing import Any

import pytest
import torch

from client_app.methods.fedgkt import FedGKT
from common import models
from common.models.split import Edge, behind, feature_shape, splittable
from server_app.stopped import Stopped
from tests.support.recorded_calls import record_calls
from tests.support.tiny import flat, play

FLEET = {"fleet": "cnn2@0.5,cnn3@0.5", "global_model": "cnn3@0.5"}
SMALL: dict[str, Any] = {"method": "fedgkt", "rounds": 1, **FLEET}


def test_a_split_network_is_its_two_halves_and_an_edge_trains_the_first():
    net = splittable(models.build("cnn3@0.5", (1, 8, 8), 3, seed=0)).eval()
    x = torch.rand(2, 1, 8, 8)
    assert feature_shape(net, (1, 8, 8)) == (16, 4, 4)
    assert torch.equal(behind(net, net.extractor(x)), net(x))
    edge = Edge(splittable(models.build("cnn3@0.5", (1, 8, 8), 3, seed=0)), 3, (1, 8, 8), seed=0)
    # stem 16·9 weights, BatchNorm 16 + 16, head 16·3 + 3
    assert sum(p.numel() for p in edge.trained()) == 144 + 32 + 51
    edge(torch.rand(2, 1, 8, 8)).sum().backward()
    behind_ = [p for name, p in edge.net.named_parameters() if edge.net.part(name) != "extractor"]
    assert behind_ and all(p.grad is None for p in behind_)


def test_one_round_costs_what_equation_7_counts(tmp_path):
    result = play(flat(tmp_path, **SMALL))
    n = sum(client["n"] for client in result.journal[0]["clients"])
    assert result.journal[1]["cost"]["numbers"] == (16 * 4 * 4 + 3 + 3) * n
    assert result.journal[1]["accuracy"] is None


@pytest.mark.full
def test_in_the_second_round_the_clients_learn_from_the_servers_logits(tmp_path, monkeypatch):
    downs = record_calls(monkeypatch, FedGKT, "train", lambda _, half, request: request)
    play(flat(tmp_path, **{**SMALL, "rounds": 2}))
    assert [request.z for request in downs if request.t == 1] == [None] * 4
    assert [tuple(request.z.shape) for request in downs if request.t == 2] == [(24, 3)] * 4


@pytest.mark.full
def test_with_alpha_zero_the_clients_do_not_look_at_the_server(tmp_path):
    given = {**SMALL, "rounds": 2, "fedgkt__alpha": 0.0}
    one, two = (play(flat(tmp_path / str(n), **given, fedgkt__server_epochs=n)) for n in (1, 2))
    assert one.journal[2]["client_metrics"] == two.journal[2]["client_metrics"]
    assert one.weights != two.weights


def test_the_large_network_behind_the_edge_learns(tmp_path):
    result = play(flat(tmp_path, **{**SMALL, "rounds": 3}))
    accuracies = [score["accuracy_global"] for score in result.journal[3]["scores"]]
    assert sum(accuracies) / len(accuracies) > 0.7


@pytest.mark.parametrize(
    ("fleet", "line"),
    [
        ("cnn2@0.5,mlp", "model 'mlp' cannot be split"),
        ("cnn2@0.5,cnn2@0.25", r"client 1: cnn2@0\.25 has features \(8, 4, 4\)"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(tmp_path, fleet: str, line: str):
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path, **{**SMALL, "fleet": fleet}))


def test_the_whole_test_set_is_scored_where_clients_have_none_of_their_own(tmp_path):
    knobs = {**SMALL, "data__test_fraction": 0.0, "score__clients_every": 1}
    assert play(flat(tmp_path / "own", **knobs)).summary["fairness"] is None
    whole = play(flat(tmp_path / "whole", fedgkt__whole_test=True, **knobs))
    scores, clients = whole.journal[-1]["scores"], whole.journal[0]["clients"]
    assert [s["n"] for s in scores] == [client["n_test"] for client in clients] == [60] * 4
    correct = [60 * score["accuracy_global"] for score in scores]
    assert all(round(n) == n for n in correct)
    assert whole.summary["fairness"]["global"]["amp"] == pytest.approx(sum(correct) / 240)
