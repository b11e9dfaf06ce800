"""Methods that average: FedAvg and what is added to a client's loss, its steps or the mean."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from client_app.methods.moon import ClientState, contrast
from client_app.methods.qffl import QFFL
from client_app.participant import Participant
from common import models, seeds
from common.exchange import tree
from common.exchange.tree import parameters_only
from common.losses.distillation import not_true
from common.losses.gradients import proximal
from common.methods import qffl as contract
from common.methods.fednova import Reply
from common.models.classifier import Projected
from common.settings.options import Average
from common.training.task import Task, evaluate
from deploy.report.pages import write_report
from server_app.aggregation.mean import average
from server_app.method import Replies
from server_app.methods.fedgkd import FedGKD
from tests.support.battery import Changing
from tests.support.halves import client, server, task
from tests.support.recorded_calls import record_calls
from tests.support.scalar import PLAIN, descend, result
from tests.support.tiny import Run, flat, play
from tests.support.weights import own_models, same


def test_the_average_and_the_proximal_term_by_hand() -> None:
    net = torch.nn.Linear(1, 1, bias=False)
    states = [{"weight": torch.tensor([[2.0]])}, {"weight": torch.tensor([[6.0]])}]
    for weights, expected in (("samples", 5.0), ("uniform", 4.0)):  # (1·2 + 3·6)/4, (2 + 6)/2
        options = Average(weights=weights)
        mean = average(states, options.shares([1, 3]), states[0], options, parameters_only(net))
        assert mean["weight"].item() == expected
    w = [torch.tensor([3.0, 0.0], requires_grad=True), torch.tensor([[1.0]])]
    reference = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[1.0]])}
    value = proximal(zip("ab", w, strict=True), reference)
    assert value.item() == 2.5  # ½ (2² + 1² + 0²)
    assert torch.autograd.grad(value, w[0])[0].tolist() == [2.0, -1.0], "the distance"


Z = torch.tensor([[1.0, 2.0, 0.0]])
Z_G = torch.tensor([[0.0, 1.0, 3.0]])
Y = torch.tensor([1])


def test_the_loss_of_fedntd_leaves_out_the_label_by_hand() -> None:
    assert F.cross_entropy(Z, Y).item() == pytest.approx(0.40761, abs=1e-5)
    # without entry 1: KL(σ(0, 3) ‖ σ(1, 0))
    assert not_true(Z_G, Z, Y).item() == pytest.approx(1.07497, abs=1e-5)
    assert 4 * not_true(Z_G, Z, Y, 2.0).item() == pytest.approx(1.63125, abs=1e-5)
    z, y = torch.randn(5, 4, generator=seeds.stream(0)), torch.tensor([0, 1, 2, 3, 0])
    student = z.clone().requires_grad_()
    not_true(z.flip(0), student, y).backward()
    own = student.grad.gather(1, y[:, None])
    assert torch.equal(own, torch.zeros(5, 1)) and bool((student.grad != 0).any())
    assert not_true(Z_G[:, :2], Z[:, :2], Y).item() == 0.0


def test_the_square_of_the_temperature_stands_before_the_term(run, monkeypatch) -> None:
    from client_app.methods import fedntd

    flat = run(method="fedntd", fedntd__beta=4.0)
    monkeypatch.setattr(fedntd, "not_true", lambda a, b, y, T: not_true(a, b, y, 1.0))
    assert run(method="fedntd", fedntd__temperature=2.0).weights == flat.weights


def test_the_teacher_is_the_mean_of_the_last_models(run, monkeypatch) -> None:
    models = record_calls(monkeypatch, FedGKD, "step", lambda _, half, *given: half.w)
    teachers = record_calls(monkeypatch, FedGKD, "request", lambda sent, *_: sent.teacher)
    run(method="fedgkd", rounds=4, fedgkd__buffer=2)
    assert teachers[0] is None and teachers[1] is None
    for t in (2, 3):
        expected = tree.mean(models[t - 2 : t], [1, 1])
        assert all(torch.equal(teachers[t][name], expected[name]) for name in expected)


def q_step(q: float, lr: float, w: float, replies: list[tuple[float, float]]) -> float:
    """The server's step on one weight; ``replies``: each client's (weight, loss)."""
    half = server(method="qffl", qffl__q=q, train__lr=lr)
    half.net, half.w = torch.nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[w]])}
    sent = [
        (client(k), contract.Reply(w={"weight": torch.tensor([[v]])}, loss=loss))
        for k, (v, loss) in enumerate(replies)
    ]
    half.step(1, Replies.of(sent))
    return float(half.w["weight"])


def test_a_step_of_qffl_by_hand() -> None:
    # q = 1, L = 1/0.5 = 2, w = 1, w_1 = 0 with F = 1, w_2 = 2 with F = 3.
    # Δw = (2, −2), Δ = (2, −6), h = 1·‖2‖² + 2·1 = 6 and 4 + 2·3 = 10.
    # w ← 1 − (2 − 6) / 16 = 1.25
    assert q_step(1.0, 0.5, 1.0, [(0.0, 1.0), (2.0, 3.0)]) == pytest.approx(1.25)
    assert q_step(0.0, 0.5, 0.0, [(-1.0, 0.5), (1.0, 2.0)]) == 0.0
    no_loss = q_step(0.5, 0.1, 1.0, [(0.0, 0.0), (0.0, 0.0)])
    assert no_loss == pytest.approx(1.0, abs=1e-3), "no division by zero"


def test_the_loss_sent_is_that_of_the_model_received(run: Run, monkeypatch: Any) -> None:
    def losses(reply: Any, half: Any, request: Any) -> tuple[float, float]:
        p = half.participant
        return reply.loss, evaluate(p.model(p.global_spec, request.w), *p.train_set, p.task).loss

    seen = record_calls(monkeypatch, QFFL, "train", losses)
    run(method="qffl", rounds=1)
    assert len(seen) == 4 and all(sent == expected for sent, expected in seen)


def test_the_contrast_by_hand() -> None:
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    # cosines 1 and 0 over τ = ½: log(1 + e⁻²)
    assert contrast(near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)
    assert contrast(3 * near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)
    q = torch.tensor([[1.0, 2.0]], requires_grad=True)
    equal = contrast(q, near, near, 0.5)
    assert equal.item() == pytest.approx(math.log(2))
    assert torch.autograd.grad(equal, q)[0].abs().max() < 1e-7


def test_in_the_first_round_of_moon_the_contrast_is_of_equal_models(run: Run) -> None:
    settings = {"rounds": 1, "projection": "on"}
    moon, fedavg = (run(method=method, **settings) for method in ("moon", "fedavg"))
    losses = [each.journal[1]["metrics"]["client_loss"] for each in (moon, fedavg)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), abs=1e-4)


def test_the_past_is_what_the_client_left_in_its_last_round(run, monkeypatch) -> None:
    recalled = record_calls(monkeypatch, Participant, "load_state", lambda w, p, *_: (p.k, w))
    held = own_models(run(method="moon", rounds=2), 1, ClientState, "w")
    nothing, past = (found for k, found in recalled if k == 0)
    assert nothing is None and same(past.w, held[0])


def test_a_projection_is_part_of_the_network() -> None:
    plain = models.build("lenet5", (1, 32, 32), 10, seed=1)
    net = models.build("lenet5", (1, 32, 32), 10, seed=1, projection=True)
    assert isinstance(net, Projected) and net.features(torch.zeros(2, 1, 32, 32)).shape == (2, 256)
    d = plain.head.in_features
    more = d * d + d + d * 256 + 256 + 256 * 10 + 10 - (d * 10 + 10)
    assert models.count(net) == models.count(plain) + more
    own = net.state_dict()
    for name, value in plain.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(own[f"base.{name}"], value), name
    assert net.spec == plain.spec == "lenet5"


def test_every_node_of_a_run_has_it_or_none(run: Run) -> None:
    played = run(method="moon", rounds=1, average__across="same")
    parameters = {c["model"]: c["parameters"] for c in played.journal[0]["clients"]}
    for spec, count in parameters.items():
        assert count == models.parameters(spec, (1, 8, 8), 3, projection=True)
    assert played.summary["failures"] == []


def test_alone_a_client_of_fedavg_does_the_same_bit_for_bit(run, monkeypatch) -> None:
    build = Task.build

    def as_the_server_draws(self: Task, *given: Any, **named: Any) -> Any:
        return build(self, *given, **{**named, "name": ("init", "global")})

    settings = {"clients": 1, "rounds": 3, "fleet": "cnn2@0.5", "score__clients_every": 1}
    fedavg = run(method="fedavg", **settings)
    monkeypatch.setattr(Task, "build", as_the_server_draws)
    local = run(method="local", **settings)
    for ours, theirs in zip(local.journal[1:], fedavg.journal[1:], strict=True):
        assert ours["metrics"] == theirs["metrics"]
        assert ours["scores"][0]["accuracy"] == theirs["scores"][0]["accuracy_global"]


def test_the_page_of_local_training_has_the_clients_models_if_they_are_scored(run: Run) -> None:
    local, untested = run(method="local"), run(method="local", data__test_fraction=0.0)
    write_report([local.folder], page := local.folder / "report.html")
    assert "own models" in page.read_text() and ">Learning<" in page.read_text()
    write_report([untested.folder], page)
    assert ">Learning<" not in page.read_text(), "nothing is scored"
    assert ">Clients<" not in page.read_text() and ">Cost<" in page.read_text()


def test_on_request_they_are_measured_on_the_whole_test_set(run, monkeypatch) -> None:
    seen = record_calls(monkeypatch, Participant, "whole_test")
    local = run(method="local", rounds=1, local__whole_test=True)
    assert local.summary["metrics"]["client_test_accuracy"] == pytest.approx(
        sum(found["test_accuracy"] for found in seen) / 4
    )
    assert len(seen) == 4


PLAIN_SGD = {"train__epochs": 1, "train__momentum": 0.0}


def step(sizes: tuple[int, ...], sent: tuple[float, ...], **changes: Any) -> float:
    """w after a round from w = 0, in batches of 16: as many steps as a client has 16 samples."""
    fednova = server(method="fednova", average__weights="uniform", **PLAIN_SGD | changes)
    fednova.net, fednova.w = torch.nn.Linear(1, 1, bias=False), {"weight": torch.zeros(1, 1)}
    fednova.task = task(**PLAIN_SGD | changes)
    replies = [
        (client(k, n), Reply(w={"weight": torch.tensor([[w]])}))
        for k, (n, w) in enumerate(zip(sizes, sent, strict=True))
    ]
    fednova.step(1, Replies.of(replies))
    return float(fednova.w["weight"])


def test_a_step_of_fednova_by_hand() -> None:
    # τ = (1, 3), p = ½: Σ p a = 2, Σ p d = ½ (−1 − 2) = −1.5, w = 3; FedAvg has 3.5
    assert step((16, 48), (1.0, 6.0)) == pytest.approx(3.0)
    assert step((16, 16), (1.0, 6.0)) == 3.5
    assert task(**PLAIN_SGD | {"train__momentum": 0.9}).effective_steps(32) == pytest.approx(2.9)
    adam = {"train__momentum": 0.9, "train__optimizer": "adam"}
    assert task(**PLAIN_SGD | adam).effective_steps(32) == 2.0
    # a = (1, 2.9): Σ p a = 1.95, Σ p d = ½ (−1 − 2) = −1.5, w = 2.925
    assert step((16, 32), (1.0, 5.8), train__momentum=0.9) == pytest.approx(2.925)
    # Σ p a = 7/3, so the models are 7/3 · (1, 6/3, 9/3), with median 14/3
    median = step((16, 48, 48), (1.0, 6.0, 9.0), average__robust="median")
    assert median == pytest.approx(14 / 3)


def test_a_whole_round_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    descend(monkeypatch, (1.0, 1.0, 1.0, 1.0))
    settings = {**PLAIN, "train__steps": 0, "train__epochs": 1, "train__batch_size": 8}
    uneven = {"data__partition": "quantity_dirichlet", "average__weights": "uniform"}
    played = run(method="fednova", rounds=1, **settings, **uneven)
    n = [c["n"] for c in played.journal[0]["clients"]]
    steps = [task(**settings).steps(size) for size in n]
    assert len(set(steps)) > 1
    # w_k = 1 − .9^τ; w = (mean τ) · mean of w_k / τ
    d = [(1 - 0.9**tau) / tau for tau in steps]
    assert result(played) == pytest.approx(sum(steps) / 4 * sum(d) / 4, abs=1e-6)


def test_steps_that_a_client_claims_are_not_believed(tmp_path: Path) -> None:
    def lie(reply: Reply) -> dict[str, Any]:
        return {"metrics": {**reply.metrics, "steps": 1e6}}

    settings = {"method": "fednova", "data__partition": "quantity_dirichlet", "rounds": 1}
    honest = play(flat(tmp_path / "a", **settings))
    lied = play(flat(tmp_path / "b", **settings), Changing.by(Reply, lie))
    assert lied.weights == honest.weights


def test_across_depths_a_layer_is_normalised_over_those_who_have_it() -> None:
    settings = {**PLAIN_SGD, "fleet": "cnn2@0.5,cnn3@0.5", "average__across": "layerwise"}
    fednova = server(method="fednova", average__weights="uniform", **settings)
    sizes = [(16, "cnn2@0.5"), (48, "cnn3@0.5"), (32, "cnn3@0.5")]
    clients = [client(k, n, model=model) for k, (n, model) in enumerate(sizes)]
    fednova.begin(clients)
    (before,) = fednova.models.values()
    fednova.models = {"cnn3@0.5": {name: torch.zeros_like(w) for name, w in before.items()}}
    owned = [fednova.task.expected(c.architecture) for c in clients]
    sent = [
        {name: torch.full(like.shape, w) for name, like in own.items()}
        for own, w in zip(owned, (1.0, 6.0, 4.0), strict=True)
    ]
    fednova.step(1, Replies.of([(c, Reply(w=w)) for c, w in zip(clients, sent, strict=True)]))
    (after,) = fednova.models.values()
    parameters = parameters_only(fednova.build("cnn3@0.5"))
    assert parameters & sent[0].keys() and parameters - sent[0].keys()
    for name in parameters:  # τ = (1, 3, 2): mean 2, Σ p d = ⅓ (1 + 2 + 2)
        # of the deep layers τ = (3, 2): mean 2.5, Σ p d = ½ (2 + 2)
        expected = torch.tensor(10 / 3 if name in sent[0] else 5.0)
        assert torch.allclose(after[name], expected), name


FLEET = {"fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"}


def test_every_size_has_its_own_head_and_learning_rate(run: Run) -> None:
    held = run(method="inclusivefl", **FLEET).model
    heads = [held[f"{spec}head.weight"] for spec in ("", "cnn2@0.5/", "cnn3@0.5/")]
    assert not any(heads[i].equal(heads[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    given: dict[str, Any] = {"method": "inclusivefl", **FLEET, "rounds": 1, "train__lr_decay": 0.5}
    factors = {"inclusivefl__lr_factors": "cnn3@0.5=0.5, cnn2@0.5=1"}
    plain, slow, half = (  # in the last run everybody goes half as far
        run(**given | changes).journal[1]["client_metrics"]
        for changes in ({}, factors, {"train__lr": 0.025})
    )
    assert [plain[k] == slow[k] for k in "0123"] == [True, False, True, True]
    assert half["1"] == slow["1"]
