"""Methods that average: FedAvg and what is added to a client's loss or to the mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from client_app.methods.moon import Memory
from common import models, tree
from common.losses.contrast import contrast
from common.losses.distillation import not_true
from common.losses.gradients import proximal
from common.methods import fedgkd
from common.models import build
from common.models.classifier import Projected
from common.options import Average
from common.tree import parameters_only
from server_app.combine.mean import average
from server_app.method import Ups
from server_app.methods.fedgkd import FedGKD
from tests.support.halves import client, server
from tests.support.scalar import kept
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


def test_the_proximal_term_by_hand() -> None:
    named = [("a", torch.tensor([3.0, 0.0])), ("b", torch.tensor([[1.0]]))]
    reference = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[1.0]])}
    # ½ (2² + 1² + 0²) = 2.5
    assert proximal(named, reference).item() == 2.5


def test_its_gradient_is_the_distance() -> None:
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    proximal([("w", w)], {"w": torch.tensor([1.0, 1.0])}).backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, -2.0]


def test_a_larger_mu_stays_nearer_to_the_global_model(run: Run) -> None:

    from common.models import build
    from common.tree import parameters_only, snapshot

    first = build("mlp@0.25", (1, 8, 8), 3, seed=1, name=("init", "global"))
    start = snapshot(first)

    def distance(mu: float) -> float:
        end = run(method="fedprox", rounds=1, fedprox__mu=mu).model
        return sum(float((end[n] - start[n]).square().sum()) for n in parameters_only(first))

    near, far = distance(10.0), distance(0.01)
    assert near < 0.5 * far and far == pytest.approx(far)


Z = torch.tensor([[1.0, 2.0, 0.0]])
Z_G = torch.tensor([[0.0, 1.0, 3.0]])
Y = torch.tensor([1])


def test_the_loss_by_hand() -> None:
    assert F.cross_entropy(Z, Y).item() == pytest.approx(0.40761, abs=1e-5)
    # without entry 1: KL(σ(0, 3) ‖ σ(1, 0))
    assert not_true(Z_G, Z, Y).item() == pytest.approx(1.07497, abs=1e-5)
    assert 4 * not_true(Z_G, Z, Y, 2.0).item() == pytest.approx(1.63125, abs=1e-5)


def test_it_says_nothing_about_the_labels_own_logit() -> None:
    z, y = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 0]),
    )
    student = z.clone().requires_grad_()
    not_true(z.flip(0), student, y).backward()
    assert student.grad is not None
    own = student.grad.gather(1, y[:, None])
    assert torch.equal(own, torch.zeros(5, 1)) and bool((student.grad != 0).any())


def test_between_two_classes_nothing_is_left_to_say() -> None:
    assert not_true(Z_G[:, :2], Z[:, :2], Y).item() == 0.0


def test_the_square_of_the_temperature_stands_before_the_term(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.methods import fedntd

    flat = run(method="fedntd", fedntd__beta=4.0)
    monkeypatch.setattr(fedntd, "not_true", lambda a, b, y, T: not_true(a, b, y, 1.0))
    assert run(method="fedntd", fedntd__temperature=2.0).weights == flat.weights


def test_the_teacher_is_the_mean_of_the_last_models(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[dict[str, torch.Tensor]] = []
    teachers = []
    step, down = FedGKD.step, FedGKD.down

    def stepping(self: FedGKD, t: int, ups: Ups[fedgkd.Up]) -> dict[str, float]:
        metrics = step(self, t, ups)
        models.append(self.w)
        return metrics

    def sending(self: FedGKD, t: int) -> object:
        sent = down(self, t)
        teachers.append(sent.teacher)
        return sent

    monkeypatch.setattr(FedGKD, "step", stepping)
    monkeypatch.setattr(FedGKD, "down", sending)
    run(method="fedgkd", rounds=4, fedgkd__buffer=2)
    assert teachers[0] is None and teachers[1] is None
    for t in (2, 3):
        expected = tree.mean(models[t - 2 : t], [1, 1])
        assert all(torch.equal(teachers[t][name], expected[name]) for name in expected)


def step(q: float, lr: float, w: float, ups: list[tuple[float, float]]) -> float:
    """The server's step on one weight; ``ups``: each client's (weight, loss)."""
    qffl = server(method="qffl", qffl__q=q, train__lr=lr)
    qffl.net, qffl.w = torch.nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[w]])}
    sent = [
        (client(k), qffl.Up(w={"weight": torch.tensor([[v]])}, loss=loss))
        for k, (v, loss) in enumerate(ups)
    ]
    qffl.step(1, Ups.of(sent))
    return float(qffl.w["weight"])


def test_a_step_by_hand() -> None:
    # q = 1, L = 1/0.5 = 2, w = 1, w_1 = 0 with F = 1, w_2 = 2 with F = 3.
    # Δw = (2, −2), Δ = (2, −6), h = 1·‖2‖² + 2·1 = 6 and 4 + 2·3 = 10.
    # w ← 1 − (2 − 6) / 16 = 1.25
    assert step(1.0, 0.5, 1.0, [(0.0, 1.0), (2.0, 3.0)]) == pytest.approx(1.25)


def test_a_larger_q_leans_to_the_client_with_the_larger_loss() -> None:
    results = [step(q, 0.5, 0.0, [(-1.0, 0.5), (1.0, 2.0)]) for q in (0.0, 0.5, 1.0)]
    assert results[0] == 0.0 < results[1] < results[2]


def test_a_loss_of_zero_is_no_accident() -> None:
    assert step(0.5, 0.1, 1.0, [(0.0, 0.0), (0.0, 0.0)]) == pytest.approx(1.0, abs=1e-3)


def test_the_loss_sent_is_that_of_the_model_received(run: Run, monkeypatch: Any) -> None:
    from client_app.methods import qffl
    from common.task import evaluate

    seen = []
    train = qffl.QFFL.train

    def watching(self: Any, down: Any) -> Any:
        up = train(self, down)
        p = self.participant
        net = p.model(p.global_spec, down.w)
        seen.append((up.loss, evaluate(net, *p.train_set, p.task).loss))
        return up

    monkeypatch.setattr(qffl.QFFL, "train", watching)
    run(method="qffl", rounds=1)
    assert len(seen) == 4 and all(sent == expected for sent, expected in seen)


def test_the_contrast_by_hand() -> None:
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    # cosines 1 and 0 over τ = ½: log(1 + e⁻²)
    assert contrast(near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)
    assert contrast(3 * near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)


def test_where_past_and_global_model_are_one_nothing_pulls() -> None:
    q = torch.tensor([[1.0, 2.0]], requires_grad=True)
    same = torch.tensor([[0.5, -1.0]])
    value = contrast(q, same, same, 0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(2))
    assert q.grad is not None and q.grad.abs().max() < 1e-7


def test_the_first_round_is_fedavgs_to_rounding(run: Run) -> None:
    settings = {"rounds": 1, "average__bn_buffers": False}
    fedavg, moon = (run(method=m, projection="on", **settings) for m in ("fedavg", "moon"))
    ours, theirs = (each.model for each in (moon, fedavg))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
    losses = [each.journal[1]["metrics"]["client_loss"] for each in (moon, fedavg)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), abs=1e-4)
    assert run(method="moon", rounds=2).weights != run(method="fedavg", projection="on").weights


def test_the_past_is_what_the_client_left_in_its_last_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.participant import Participant

    recalled: list[tuple[int, Any]] = []
    recall = Participant.recall

    def watching(self: Participant, t: int, kind: Any) -> Any:
        found = recall(self, t, kind)
        if self.k == 0:
            recalled.append((t, found))
        return found

    monkeypatch.setattr(Participant, "recall", watching)
    played = run(method="moon", rounds=2)
    (first, nothing), (second, past) = recalled
    assert (first, nothing, second) == (1, None, 2)
    held = Memory.load(kept(played.folder, 1, 0, Memory.kind)).w
    assert all(torch.equal(past.w[name], held[name]) for name in held)


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
