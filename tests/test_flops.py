"""Floating-point operations are those that one counts by hand; counting them changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common.journal import Entry
from common.training.costs import counting
from deploy.report.pages import write_report
from deploy.report.table import operations, size
from deploy.run.loopback import Loopback
from server_app.tracking import numbers
from tests.support.tiny import Run, TinyRun, flat, play

MEASURED = {"flops": True, "memory": True}
ONE: dict[str, Any] = {"fleet": "mlp@0.25", "data__test_fraction": 0.0}
PUBLIC: dict[str, Any] = {"rounds": 1, "fleet": "mlp@0.25", "data__public": 0.4}
PUBLIC |= {"confidence__epochs": 1, "ensemble__epochs": 1}


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
def test_a_run_counts_what_its_clients_compute_and_gives_the_same_bits(
    workers: int, tmp_path: Path
) -> None:
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
