"""Operations, memory and numbers sent are those counted by hand; measuring them changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from client_app.methods.i_dl_mh import IDLMH
from common import models
from common.exchange.protocol import Request
from common.journal import Entry, PeakMemory
from common.training.costs import counting, following
from deploy.report.groups import Group
from deploy.report.pages import one, write_report
from deploy.report.read import read
from deploy.report.sections import formula_cost, incentive
from deploy.report.style import render
from deploy.report.table import operations, size
from deploy.run.loopback import Loopback
from server_app.tracking import numbers
from tests.support.tiny import Run, TinyRun, flat, play

MEASURED = {"flops": True, "memory": True}
ONE: dict[str, Any] = {"fleet": "mlp@0.25", "data__test_fraction": 0.0}
PUBLIC: dict[str, Any] = {"rounds": 1, "fleet": "mlp@0.25", "data__public": 0.4}
PUBLIC |= {"confidence__epochs": 1, "ensemble__epochs": 1}
STEPS: dict[str, Any] = {"fleet": "mlp@0.25", "data__test_fraction": 0.0, "train__steps": 3}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_convolution_and_a_matrix_product_are_counted(mode: Any) -> None:
    conv, linear = nn.Conv2d(3, 4, 3), nn.Linear(10, 5)
    with mode(), counting(True) as spent:
        conv(torch.ones(2, 3, 8, 8))
        linear(torch.ones(7, 10))
        torch.ones(5).exp()  # element by element: not counted
    assert spent.total == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3) + 2 * 7 * 10 * 5


def test_backward_counts_the_weights_gradient_and_where_it_is_needed_the_inputs() -> None:
    linear = nn.Linear(10, 5)
    for needed, times in ((False, 2), (True, 3)):
        with counting(True) as spent:
            linear(torch.ones(7, 10, requires_grad=needed)).sum().backward()
        assert spent.total == times * 2 * 7 * 10 * 5


def by_hand(run: TinyRun, samples: int) -> int:
    """What a run costs that trains perceptrons on so many samples, the same for each."""
    weights = run.model
    products = {name: 2 * w.numel() for name, w in weights.items() if w.ndim == 2}
    every, first = sum(products.values()), products["layers.0.weight"]
    return samples * (3 * every - first)  # the images need no gradient


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_counts_operations_and_gives_the_same_bits(workers: int, tmp_path: Path) -> None:
    settings = ONE | {"method": "fedavg", "train__steps": 3}
    plain = play(flat(tmp_path / "plain", **settings))
    config = flat(tmp_path / "counted", **settings, flops=True)
    run = play(config, Loopback(4, config, workers=workers))
    clients = by_hand(run, samples=2 * 4 * 3 * 16)
    assert run.summary["flops"] == {"clients": clients, "server": 0, "total": clients}
    assert [e["flops"]["clients"] for e in run.journal[1:]] == 2 * [clients // 2]
    assert run.journal[1]["client_metrics"]["3"]["flops"] == clients / 8
    assert run.weights == plain.weights and "flops" not in plain.summary


@pytest.mark.full
def test_the_server_is_counted_apart(run: Run) -> None:
    given = {"method": "fedorion", "flops": True}
    once, twice = (run(**given, noise__batches=n).summary["flops"] for n in (4, 8))
    clients, server = once["clients"], 2 * once["server"]
    assert twice == {"clients": clients, "server": server, "total": clients + server}
    assert server > 0


@pytest.mark.full
def test_the_second_exchange_of_a_round_is_counted(run: Run) -> None:
    given = PUBLIC | {"method": "i-dl-mh", "flops": True}
    short, long = (run(**given, i_dl_mh__incentive_epochs=n).summary["flops"] for n in (1, 3))
    assert long["clients"] > short["clients"] > 0 and long["server"] == short["server"] > 0


@pytest.mark.full
def test_training_that_is_shared_with_another_run_is_done_and_measured(tmp_path: Path) -> None:
    settings, learnt = {**ONE, "method": "local", **MEASURED}, tmp_path / "learnt"
    first, again = (play(flat(tmp_path / n, **settings), learnt=learnt).summary for n in "ab")
    for measured in MEASURED:
        assert again[measured] == first[measured] and again[measured]["clients"] > 0


@pytest.mark.full
def test_the_report_and_the_trackers_tell_operations_and_memory(tmp_path: Path) -> None:
    run = play(flat(tmp_path / "run", method="fedorion", **MEASURED))
    write_report([run.folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    clients, server = (operations(run.summary["flops"][who]) for who in ("clients", "server"))
    assert f"Training took {clients} at the clients and {server} at the server." in page
    largest, server = (size(run.summary["memory"][who]) for who in ("largest", "server"))
    assert f"Tensors took {largest} at most at a client and {server} at the server." in page
    tracked = numbers.scalars(Entry.read(json.dumps(run.journal[1])))
    for measured in MEASURED:
        assert tracked[f"{measured}/server"] == run.journal[1][measured]["server"] > 0
    assert operations(1_234_567) == "1.23 MFLOP" and operations(42) == "42 FLOP"


def test_what_is_held_at_once_is_counted_and_what_was_let_go_is_not() -> None:
    before = torch.ones(1000)
    with following(True) as peak:
        first = before + 1
        assert peak.now == 4000, "what was there before is not counted"
        first.add_(1)
        view = first.view(10, 100)[:5]
        assert peak.now == 4000, "nor what takes nothing more"
        del first
        assert peak.now == 4000, "a view holds all of it"
        second = view.half()
        del view
        assert (peak.now, peak.most) == (1000, 5000)
        del second
        assert (peak.now, peak.most) == (0, 5000)
    torch.ones(1000)
    assert peak.most == 5000


def test_what_autograd_keeps_is_held_until_the_gradients_are_there() -> None:
    x = torch.ones(100, requires_grad=True)
    with following(True) as peak:
        total = x.exp().exp().sum()
        assert peak.now == 2 * 400 + 4
        total.backward()
        assert x.grad is not None
        del total
        assert peak.now == 400, "the gradient alone"
        assert peak.most > 2 * 400 + 4


def test_operations_and_memory_are_measured_together_and_only_if_asked_for() -> None:
    with counting(True) as spent, following(True) as peak:
        nn.Linear(10, 5)(torch.ones(7, 10))
    assert spent.total == 2 * 7 * 10 * 5
    assert peak.most >= 4 * (7 * 10 + 10 * 5 + 5 + 7 * 5)
    with counting(False) as spent, following(False) as peak:
        nn.Linear(10, 5)(torch.ones(7, 10))
    assert (spent.total, peak.most) == (0, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_measures_memory_and_gives_the_same_bits(workers: int, tmp_path: Path) -> None:
    plain = play(flat(tmp_path / "plain", **STEPS, method="fedavg"))
    config = flat(tmp_path / "measured", **STEPS, method="fedavg", memory=True)
    run = play(config, Loopback(4, config, workers=workers))
    weights = sum(w.nbytes for w in run.model.values())
    memory = run.summary["memory"]
    held = {most for e in run.journal[1:] for most in e["memory"]["clients"].values()}
    assert held == {memory["clients"]} == {memory["largest"]}, "all do the same in both rounds"
    assert memory["clients"] > 3 * weights, "what was sent, the network and its gradients"
    assert memory["server"] > 0
    assert run.weights == plain.weights and "memory" not in plain.summary


def test_adam_takes_two_networks_more_than_sgd(run: Run) -> None:
    one = STEPS | {"fleet": "mlp@2", "method": "fedavg"}  # beside whose weights a batch is little
    one |= {"train__momentum": 0.0, "train__batch_size": 2, "memory": True}
    sgd, adam = (run(**one, train__optimizer=name) for name in ("sgd", "adam"))
    more = adam.summary["memory"]["clients"] - sgd.summary["memory"]["clients"]
    assert more == pytest.approx(2 * sum(w.nbytes for w in sgd.model.values()), rel=0.05)


def test_a_clients_most_is_that_of_its_hungriest_round() -> None:
    first = PeakMemory(clients={0: 1.0, 1: 5.0}, server=2.0)
    most = PeakMemory.most([first, PeakMemory(clients={0: 3.0, 2: 4.0})])
    assert most == PeakMemory(clients={0: 3.0, 1: 5.0, 2: 4.0}, server=2.0)
    assert most.as_dict() == {"clients": 4.0, "largest": 5.0, "server": 2.0}
    assert PeakMemory.most([]).as_dict() == {"clients": 0.0, "largest": 0.0, "server": 0.0}


def test_the_second_exchange_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = IDLMH.second

    def hungry(self: IDLMH, request: Request) -> Any:
        torch.ones(10**6)
        return second(self, request)

    monkeypatch.setattr(IDLMH, "second", hungry)
    settings = {"rounds": 1, "fleet": "mlp@0.25", "data__public": 0.4, "memory": True}
    epochs = {"confidence__epochs": 1, "ensemble__epochs": 1, "i_dl_mh__incentive_epochs": 1}
    run = play(flat(tmp_path / "run", **settings, **epochs, method="i-dl-mh"))
    assert 4e6 < run.summary["memory"]["largest"] < 5e6


@pytest.mark.full
def test_the_report_shows_the_formulas_count_the_bytes_and_their_ratio(run: Run) -> None:
    """The cost formulas of DL-MH's paper, section 5.2.1: numbers beside bytes."""
    knobs = {"data__public": 0.6, "data__samples": 200, "confidence.epochs": 1}
    done = run(method="i-dl-mh", rounds=1, **knobs)
    record = read(done.folder)
    section = formula_cost([Group("i-dl-mh", [record])])
    assert section is not None and section.cards[0].table is not None
    (row,) = section.cards[0].table.rows
    cost = done.summary["cost"]
    numbers, sent = cost["numbers"], cost["bytes"]
    assert row[2:] == (f"{numbers:,}", f"{sent:,}", f"{sent / numbers:.3f}")
    gains = incentive(record)
    assert gains is not None and gains.cards[0].table is not None
    assert len(gains.cards[0].table.rows) == 4
    page = render(one(record))
    assert "Communication" in page and "Incentive" in page


def test_a_run_without_a_formula_has_no_such_section(run: Run) -> None:
    record = read(run(method="fedorion", rounds=1).folder)
    assert formula_cost([Group("fedorion", [record])]) is None and incentive(record) is None


def test_fedavg_counts_its_parameters_twice_per_client_and_round(run: Run) -> None:
    done = run(method="fedavg", rounds=2)
    P = models.parameters("mlp@0.25", (1, 8, 8), 3)
    Q = models.parameters("cnn2@0.5", (1, 8, 8), 3)
    assert done.summary["cost"]["numbers"] == 2 * 4 * 2 * min(P, Q)
