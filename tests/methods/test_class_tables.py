"""FD, FedProto, FedTGP and FedGH: class tables, their mean, and predictors by prototypes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.class_table import squared
from client_app.participant import Participant
from common import seeds
from common.losses.distillation import soft_cross_entropy
from common.models.prototypes import Nearest, PrototypeGenerator, distances, largest_gap
from common.parse import parse
from common.techniques.class_table import ClassSums, TableReply, class_mean, leave_one_out
from server_app.method import Replies
from server_app.methods.fedtgp import contrast
from tests.support.halves import client, server, task
from tests.support.own_modules import importing_from, package
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, TinyRun, flat
from tests.support.weights import own_models, same

WIDE: dict[str, Any] = {"feature_dim": 16}
UNEVEN = {"data__partition": "label_dirichlet", "data__alpha": 0.3, "data__min_size": 4}


def test_means_by_class_over_samples_and_over_clients() -> None:
    sums = ClassSums(3)
    sums.add(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0, 0]))
    sums.add(torch.tensor([[5.0, 5.0]]), torch.tensor([2]))
    rows, present = sums.table()
    assert rows.tolist() == [[2, 1], [0, 0], [5, 5]] and rows.dtype == torch.float32
    assert present.tolist() == [True, False, True]
    tables = [torch.tensor([[*row], [1.0, 1.0]]) for row in ((2.0, 0.0), (0.0, 2.0), (4.0, 4.0))]
    ones = [torch.tensor([1, 0]), torch.tensor([1, 0]), torch.tensor([1, 1])]
    rows, present = class_mean(tables, ones)
    assert rows.tolist() == [[2, 2], [1, 1]] and present.tolist() == [True, True]
    first, _, third = leave_one_out(tables, ones)
    assert first.rows.tolist() == [[2, 3], [1, 1]] and first.present.tolist() == [True, True]
    assert third.rows.tolist() == [[1, 1], [0, 0]] and third.present.tolist() == [True, False]
    counts = [torch.tensor([3, 0]), torch.tensor([1, 0]), torch.tensor([0, 2])]
    assert class_mean(tables, counts).rows.tolist() == [[1.5, 0.5], [1, 1]]
    rows, present = class_mean([torch.zeros(2, 3)], [torch.tensor([0, 1])])
    assert rows.tolist() == [[0] * 3] * 2 and present.tolist() == [False, True], "nobody sent it"


def test_distances_of_the_losses_and_the_nearest_prototype_by_hand() -> None:
    f, P = torch.tensor([[1.0, 1.0], [9.0, 9.0]]), torch.zeros(2, 2)
    assert squared(f[:1], P[:1], torch.tensor([True])) == 1
    assert squared(f, P, torch.tensor([True, False])) == 0.5
    z, mean = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2
    assert abs(float(soft_cross_entropy(mean, z).mean()) - expected) < 1e-6

    class Identity(nn.Module):
        spec, head = "x", nn.Linear(2, 3)

        def features(self, x: Tensor) -> Tensor:
            return x

    P = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 0.0]])
    net: Any = Identity()
    logits = Nearest(net, P, torch.tensor([True, True, False]))(torch.tensor([[1.0, 0.0]]))
    assert logits.tolist() == [[-0.5, -4.5, -1e9]]


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("ce-soft", 0.5 * (0.5 * 0.126928 + 0.5 * 2.126928)),
        ("mse", 0.5 * 2.0),
        # HtFLlib: unnormalised targets, and the second sample's own logits (0, 1)
        ("raw", 0.5 * (0.0 + 1.0 * 0.313262)),
    ],
)
def test_fd_compares_logits_with_the_mean_logits(how: str, value: float) -> None:
    from client_app.methods.fd import FD

    half = FD.__new__(FD)
    half.options = task(method="fd", fd__distance=how).config.method
    z, rows = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
    distance = half.distance(z, rows, torch.tensor([True, False]))
    assert abs(float(distance) - value) < 1e-5


def test_the_contrast_and_the_margin_of_fedtgp_by_hand() -> None:
    P, prototypes, y = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0])
    assert abs(float(contrast(P, prototypes, y, 0.0)) - 0.006715) < 1e-6
    assert abs(float(contrast(P, prototypes, y, 5.0)) - math.log(2)) < 1e-6
    prototypes.requires_grad_()
    contrast(P, prototypes, y, 5.0).backward()
    assert prototypes.grad is not None and bool(prototypes.grad.isfinite().all())
    assert distances(P, prototypes).tolist()[0][1] == 5
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [9.0, 9.0]])
    present = torch.tensor([True, True, True, False])
    # nearest others: 1, √18, 1; the absent class does not count
    assert abs(largest_gap(rows, present, 100.0) - math.sqrt(18)) < 1e-9
    assert largest_gap(rows, present, 2.0) == 2
    assert largest_gap(rows, torch.tensor([True, False, False, False]), 7.0) == 7


def replies(*tables: tuple[list[list[float]], list[int]]) -> Replies[TableReply]:
    made = [TableReply(table=torch.tensor(t), counts=torch.tensor(c)) for t, c in tables]
    return Replies.of([(client(k), reply) for k, reply in enumerate(made)])


PAIRS = (
    ([[1.0] * 16, [0.0] * 16, [0.0] * 16], [1, 0, 0]),
    ([[0.0] * 16, [-1.0] * 16, [2.0] * 16], [0, 1, 1]),
)


def test_fedtgp_moves_its_first_prototypes_to_those_of_the_clients() -> None:
    method = server(method="fedtgp", fedtgp__server_epochs=0, **WIDE)
    with seeds.scope(method.task.seed, "init", "prototypes"):
        first = PrototypeGenerator(3, 16)
    assert method.request(1).rows is None and method.step(1, replies(*PAIRS)) == {}
    request = method.request(2)
    assert torch.equal(request.rows, first().detach()) and request.present.tolist() == [True] * 3
    method = server(method="fedtgp", fedtgp__server_lr=0.1, fedtgp__margin=0.5, **WIDE)
    losses = [method.step(t, replies(*PAIRS))["server_loss"] for t in range(1, 4)]
    assert losses[-1] < 0.2 * losses[0]
    received = torch.tensor([[1.0] * 16, [-1.0] * 16, [2.0] * 16])
    assert distances(received, method.rows).argmin(1).tolist() == [0, 1, 2]


def test_a_step_of_fedgh_is_one_of_softmax_regression() -> None:
    method = server(method="fedgh", fedgh__server_lr=1.0, **WIDE)
    method.head = {"weight": torch.zeros(3, 16), "bias": torch.zeros(3)}
    unit = torch.eye(16)[0]
    table = torch.stack([unit, unit * 0, unit * 0])
    reply = TableReply(table=table, counts=torch.tensor([1, 0, 0]))
    metrics = method.step(1, Replies.of([(client(), reply)]))
    assert abs(metrics["server_loss"] - math.log(3)) < 1e-6
    step = torch.tensor([2 / 3, -1 / 3, -1 / 3])
    weight = method.head["weight"]
    assert torch.allclose(weight[:, 0], step) and not weight[:, 1:].any()
    assert torch.allclose(method.head["bias"], step)
    assert torch.equal(method.request(2).w["weight"], method.head["weight"])


def test_without_epochs_every_round_of_fedgh_starts_from_the_first_head(played: Run) -> None:
    settings = {"method": "fedgh", "rounds": 2, **WIDE}
    still = played(**settings, fedgh__server_epochs=0)
    drawn = server(**settings).head
    for name, value in drawn.items():
        assert torch.equal(still.model[name], value)
    assert not torch.equal(played(**settings).model["weight"], drawn["weight"])


def participant(run: TinyRun, settings: dict[str, Any], k: int) -> Participant:
    node = {"partition-id": k, "state-dir": str(run.folder / "state")}
    return Participant(parse(flat(run.folder, **settings)), node, "test")


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_head_and_prototypes_are_both_scored_whichever_counts(method: str, run: Run) -> None:
    settings = {"method": method, "rounds": 2, **WIDE, **UNEVEN, "data__test_fraction": 0.5}
    key = f"{method}__predict"
    by_head, by_prototype = (run(**settings, **{key: how}) for how in ("head", "prototype"))
    assert same(own_models(by_head, 2), own_models(by_prototype, 2))
    assert by_head.weights == by_prototype.weights
    pairs = [*zip(by_head.journal[-1]["scores"], by_prototype.journal[-1]["scores"], strict=True)]
    for head, prototype in pairs:
        assert head["accuracy"] == prototype["accuracies"]["head"]
        assert head["accuracy_global"] == prototype["accuracy_global"] == prototype["accuracy"]
    assert any(head["accuracy"] != head["accuracy_global"] for head, _ in pairs)
    p = participant(by_head, settings, 1)
    net = p.model(p.spec, own_models(by_head, 2)[1])
    for name, one in (("accuracy", net), ("accuracy_global", Nearest(net, **by_head.model))):
        assert pairs[1][0][name] == p.score(one)


@pytest.mark.parametrize("method", ["fedgh", "lg-fedavg"])
def test_a_client_scores_its_features_with_the_newest_head(method: str, run: Run) -> None:
    settings = {"method": method, "rounds": 2, **WIDE, **UNEVEN, "data__test_fraction": 0.5}
    settings |= {"fedgh__server_lr": 5.0} if method == "fedgh" else {}
    played = run(**settings)
    for k, score in enumerate(played.journal[-1]["scores"]):
        p = participant(played, settings, k)
        net = p.model(p.spec, own_models(played, 2)[k])
        assert not torch.equal(net.head.weight, played.model["weight"])
        net.head.load_state_dict(played.model)
        assert score["accuracy"] == score["accuracy_global"] == p.score(net)


def test_final_rows_are_those_of_the_trained_model_and_running_ones_of_the_steps(run: Run) -> None:
    common = {"method": "fedproto", "rounds": 1, "fleet": "mlp@0.25", "clients": 1}
    final = run(**common, fedproto__collect="final")
    running = run(**common, fedproto__collect="running")
    p = participant(final, common, 0)
    net = p.model(p.spec, own_models(final, 1)[0]).eval()
    assert same(own_models(final, 1), own_models(running, 1))
    (x, _), y = next(p.task.in_order(*p.train_set, size=1000)), p.train_set[1]
    for c in range(3):
        mean = net.features(x[y == c]).mean(0)
        assert torch.allclose(final.model["prototypes"][c], mean, atol=1e-6)
        assert not torch.allclose(running.model["prototypes"][c], mean, atol=1e-3)


@pytest.mark.parametrize("weights", ["uniform", "counts"])
def test_counts_travel_only_where_they_weigh(weights, run, monkeypatch) -> None:
    sent = record_calls(monkeypatch, TableReply, "pack", lambda _, reply: reply.counts.tolist())
    settings = {"method": "fedproto", "rounds": 1, **WIDE, **UNEVEN, "fedproto__weights": weights}
    counts = [client["counts"] for client in run(**settings).journal[0]["clients"]]
    assert sent == (counts if weights == "counts" else [[min(n, 1) for n in c] for c in counts])


def test_each_client_hears_the_others_under_leave_one_out() -> None:
    method = server(method="fd", fd__weights="leave-one-out")
    rows = ([2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [4.0, 4.0, 0.0])
    method.step(1, replies(*(([row, [0.0] * 3, [0.0] * 3], [1, 0, 0]) for row in rows)))
    request = method.request(2)
    assert request(client(0)).rows[0].tolist() == [2, 3, 0]
    assert request(client(2)).rows[0].tolist() == [1, 1, 0]
    assert request(client(9)).rows[0].tolist() == [2, 2, 0]
    assert request(client(0)).present.tolist() == [True, False, False]


def test_a_clients_own_architecture_of_another_width_is_refused_at_the_census() -> None:
    method = server(method="fedproto", fleet="cnn2@0.5")
    with pytest.raises(ValueError, match=r"cnn2@0.5 has 32 and mlp@0.5 has 64: set feature-dim"):
        method.begin([client(0, model="cnn2@0.5"), client(1, model="mlp@0.5")])


MINE = '''
"""Prototypes in one module."""
from client_app.bases.class_table import PrototypeLearner
from common.techniques.class_table import PrototypeOptions as Options
from server_app.class_table import Prototypes
class Server(Prototypes[Options]):
    pass
class Client(PrototypeLearner[Options]):
    def distance(self, outputs, rows, present):
        return ((outputs - rows).square().mean(1) * present).mean()
'''


def test_fedproto_is_a_loss_in_a_plugin(tmp_path, monkeypatch, run, played) -> None:
    importing_from(tmp_path, monkeypatch)
    name = f"{package(tmp_path, {'mine': MINE})}:mine"
    settings = {"rounds": 2, **WIDE, **UNEVEN}
    mine = run(method=name, plugins=str(tmp_path), **settings)
    ours = played(method="fedproto", **settings)
    assert same(own_models(mine, 2), own_models(ours, 2)) and mine.weights == ours.weights
