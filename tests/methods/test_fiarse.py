"""FIARSE: the largest entries travel, are trained and averaged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.methods.fiarse import FIARSE, effective
from client_app.node import check
from client_app.participant import Participant
from common.exchange.records import array_bytes
from common.methods.fiarse import Options, Reply
from common.parse import parse
from common.techniques import importance
from server_app.method import Replies
from tests.support import halves
from tests.support.halves import client, server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat

W = torch.tensor([0.5, -0.2, 0.1, -0.4])
GROUPS = {"all": ["x"]}
LR = 0.1
TINY = {"method": "fiarse", "fleet": "cnn2@0.5", "fiarse__sizes": "1, 0.25"}


def stepped(size: float) -> Tensor:
    """W after a step on a client of this size, with ∂L/∂(w m) = 1."""
    (theta,) = importance.thresholds({"x": W}, GROUPS, size).values()
    w = W.clone().requires_grad_()
    effective(w, theta).sum().backward()
    return W - LR * w.grad


@pytest.mark.parametrize(
    ("size", "theta", "gradient"),
    [
        (0.5, 0.4, [1.493827, 0.0, 0.0, 1.5]),
        (1.0, 0.1, [1.277778, 1.444444, 1.5, 1.32]),
        (0.01, 0.5, [1.5, 0.0, 0.0, 0.0]),
    ],
)
def test_threshold_and_gradient(size: float, theta: float, gradient: list[float]) -> None:
    assert importance.thresholds({"x": W}, GROUPS, size)["all"] == pytest.approx(theta)
    assert ((W - stepped(size)) / LR).tolist() == pytest.approx(gradient, abs=1e-5)


def test_at_threshold_0_nothing_is_masked_and_the_gradient_is_plain() -> None:
    w = torch.tensor([0.0, 2.0]).requires_grad_()
    out = effective(w, 0.0)
    (gradient,) = torch.autograd.grad(out, w, torch.tensor([3.0, 5.0]))
    assert out.tolist() == [0.0, 2.0] and gradient.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("theta", [0.1, 0.4])
def test_the_gradient_of_the_mask_alone_is_that_of_a_boolean_one(theta: float) -> None:
    """The released code's mask is boolean, and torch gives it no gradient of its own."""
    upstream, w, size = torch.tensor([1.0, -2.0, 3.0, 0.5]), W.clone().requires_grad_(), W.abs()
    ours, default = (
        torch.autograd.grad(effective(w, theta, *how), w, upstream)[0] for how in (("mask",), ())
    )
    assert torch.equal(ours, upstream * (size >= theta))
    torch.testing.assert_close(default, ours * (1 + 2 * theta * size / (size + theta) ** 2))
    at_theta = size == theta
    assert at_theta.any() and torch.equal(default[at_theta], 1.5 * ours[at_theta])


LEAVES = ("weight", "running_mean", "num_batches_tracked")
NORM, MEAN, COUNT = (f"stem.bn.{leaf}" for leaf in LEAVES)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_norm_is_divided_by_the_clients_that_changed_it(server_lr: float) -> None:
    """Scales 1 become .4 and 1 at two clients, means 0 become 2 and 0."""
    found = {}
    for norm_count in ("all", "nonzero"):
        half = server(**TINY, fiarse__norm_count=norm_count, fiarse__server_lr=server_lr)
        members = [client(k, size=1.0) for k in range(2)]
        sent = [half.request(1)(member) for member in members]
        half.sent = dict(enumerate(sent))
        changed = dict(sent[0].rest)
        changed[NORM] = changed[NORM].clone().fill_(0.4)
        changed[MEAN] = changed[MEAN].clone().fill_(2.0)
        changed[COUNT] = changed[COUNT] + 7
        delta = torch.zeros_like(sent[0].kept)
        answers = [Reply(delta=delta, rest=rest) for rest in (changed, sent[1].rest)]
        half.step(1, Replies.of(list(zip(members, answers, strict=True))))
        found[norm_count] = [float(half.w[n].flatten()[0]) for n in (NORM, MEAN, COUNT)]
    # the released sum of the changes over the count of the clients with a change: .6/1 and −2/1
    assert found["nonzero"] == pytest.approx([1 - server_lr * 0.6, 2.0, 7])
    assert found["all"] == pytest.approx([1 - server_lr * 0.3, 1.0, 7])


def aggregated(count: str, *replies: tuple[float, list[float]], **changes: Any) -> list[float]:
    """The server's w after steps Δ of clients of these sizes."""
    half = server(**{**TINY, "fiarse__sizes": "1, 0.5", "fiarse__count": count, **changes})
    half.w, half.entries, half.groups, half.complete = {"x": W}, ["x"], GROUPS, []
    sent, answers = half.request(1), list[tuple[Any, Reply]]()
    for k, (size, delta) in enumerate(replies):
        answers.append((client(k, size=size), Reply(delta=torch.tensor(delta), rest={})))
        half.sent = {**half.sent, k: sent(answers[-1][0])}
        half.check(*answers[-1])
    half.step(1, Replies.of(answers))
    return half.w["x"].tolist()  # type: ignore[no-any-return]


def test_the_servers_step_by_hand() -> None:
    half = (W - stepped(0.5))[[0, 3]].tolist()
    whole = (W - stepped(1.0)).tolist()
    expected = [0.361420, -0.344444, -0.05, -0.541]
    assert aggregated("nonzero", (0.5, half), (1.0, whole)) == pytest.approx(expected, abs=1e-6)
    assert aggregated("mask", (0.5, half), (1.0, whole)) == pytest.approx(expected, abs=1e-6)
    replies = ((1.0, [0.2, 0.0, 0.0, 0.0]), (0.5, [0.0, 0.4]))
    assert aggregated("nonzero", *replies) == pytest.approx([0.3, -0.2, 0.1, -0.8])
    assert aggregated("mask", *replies) == pytest.approx([0.4, -0.2, 0.1, -0.6])
    half_way = aggregated("mask", *replies, fiarse__server_lr=0.5)
    assert half_way == pytest.approx([0.45, -0.2, 0.1, -0.5])


def test_an_entry_that_falls_below_stays_where_it_fell() -> None:
    """Momentum and decay would move it on; it starts at 0.55, above θ = 0.5."""
    net = nn.Linear(1, 2, bias=False)

    def train(t: int, parameters: Any, loss: Any, after: Callable[[], None]) -> dict[str, float]:
        sgd = torch.optim.SGD(parameters, 1.0, momentum=0.9, weight_decay=0.1)
        for _ in range(3):
            sgd.zero_grad()
            loss(torch.ones(1, 1), torch.tensor([1])).backward()
            sgd.step()
            with torch.no_grad():
                after()
            course.append(net.weight.flatten().tolist())
        return {}

    course: list[list[float]] = []
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.55], [0.6]]))
    half = FIARSE.__new__(FIARSE)
    half.participant = halves.learner(train=train)
    half.options = Options()
    half.learn(1, net, {"weight": 0.5})  # type: ignore[arg-type]
    first = [each[0] for each in course]
    assert abs(first[0]) < 0.5 and first[0] == first[1] == first[2]
    # the second step sees it as 0, and the other goes on with momentum and decay
    before, now = 0.6, course[0][1]
    error = F.softmax(torch.tensor([0.0, now]), 0)[1].item() - 1
    gradient = error * (1 + 2 * 0.5 * now / (now + 0.5) ** 2) + 0.1 * now
    assert course[1][1] == pytest.approx(now - gradient - 0.9 * (before - now))


def test_entries_are_those_of_convolutions_and_linear_layers_by_stage() -> None:
    net = task().build("resnet8@0.25", name=("x",))
    names = importance.entries(net)
    assert not any("bn" in name for name in names) and "head.bias" in names
    stages, whole = (importance.groups(names, scope) for scope in ("stage", "global"))
    assert sorted(stages) == ["conv1", "head", "layer1", "layer2", "layer3"]
    w = dict(net.state_dict())
    for of in (stages, whole):
        theta = importance.thresholds(w, of, 0.25)
        on = importance.masks(w, importance.by_name(theta, of))
        for members in of.values():
            total = sum(w[name].numel() for name in members)
            assert sum(int(on[name].sum()) for name in members) == int(total * 0.25)
        told = importance.from_bitmap(importance.bitmap(on), {name: w[name] for name in names})
        assert all(torch.equal(told[name], on[name]) for name in names)
        back = importance.spread(importance.kept(w, on), on)
        assert all(torch.equal(back[name], w[name] * on[name]) for name in names)


@pytest.mark.parametrize("size", [1.0, 0.25])
def test_a_share_of_the_entries_and_a_bit_for_each_travels(size: float) -> None:
    half = server(**{**TINY, "fleet": "lenet5"})
    parameters = sum(w.numel() for w in half.w.values())  # no normalisation
    request = half.request(1)(client(size=size))
    held = 4 * int(size * parameters) + -(-parameters // 8)
    assert array_bytes(request.pack()) == pytest.approx(held, abs=8)
    assert request.rest == {} and len(request.kept) == int(size * parameters)


def test_a_client_changes_what_it_was_sent_and_nothing_else(tmp_path, monkeypatch) -> None:
    settings = {**TINY, "train__weight_decay": 0.1, "fiarse__sizes": "0.25"}
    half = server(**settings)
    request = half.request(1)(client(size=0.25))
    p = Participant(parse(flat(tmp_path, **settings)), {"partition-id": 1, "device": "cpu"}, "e")
    nets = record_calls(
        monkeypatch, FIARSE, "learn", lambda _, handler, t, net, theta: dict(net.named_parameters())
    )
    reply = FIARSE(p).train(request.stamped("e", 1))
    (trained,) = nets
    held = importance.from_bitmap(request.bitmap, {name: half.w[name] for name in half.entries})
    moved = importance.spread(reply.delta, held)
    for name, mask in held.items():
        assert bool((trained[name][~mask] == 0).all()), "what was not sent stays 0"
        after = half.w[name] * mask - moved[name]
        assert torch.allclose(after, trained[name], atol=1e-6)
    assert reply.delta.count_nonzero() > 0.9 * len(reply.delta)


def test_with_all_sizes_1_and_no_threshold_it_is_uniform_fedavg(run, monkeypatch) -> None:
    fedavg = run(method="fedavg", fleet="cnn2@0.5", average__weights="uniform").model
    alone = {**TINY, "fiarse__sizes": "1"}
    thresholded = run(**alone).model
    monkeypatch.setattr(importance, "thresholds", lambda w, of, size: dict.fromkeys(of, 0.0))
    ours = run(**alone, fiarse__count="mask").model
    torch.testing.assert_close(ours, fedavg, rtol=0, atol=1e-6)
    assert any(not torch.allclose(ours[n], thresholded[n], atol=1e-3) for n in ours)


def test_sizes_are_scored_one_by_one_and_a_client_scores_its_own(run: Run) -> None:
    result = run(**TINY, rounds=3, node__1__size=0.5)
    last = result.journal[-1]
    assert sorted(last["accuracies"]) == ["size-0.25", "size-0.5", "size-1"]
    assert last["accuracy"] == pytest.approx(sum(last["accuracies"].values()) / 3)
    assert all(score["accuracy"] == score["accuracy_global"] for score in last["scores"])


def test_without_running_statistics_none_travel() -> None:
    half = server(**TINY, fiarse__running=False, score__bn="batch")
    rest = half.request(1)(client()).rest
    leaves = ("bn.bias", "bn.num_batches_tracked", "bn.weight")
    assert sorted(rest) == [f"{block}.{leaf}" for block in ("layer1.0", "stem") for leaf in leaves]


def test_a_size_is_a_configured_number() -> None:
    with pytest.raises(ValueError, match=r"client 1 claims the size 0.3; configured are 1, 0.25$"):
        server(**TINY).begin([client(0, size=1.0), client(1, size=0.3)])
    server(**TINY, node__1__size=0.3).begin([client(0, size=1.0), client(1, size=0.3)])
    check({"partition-id": 0, "size": 0.5})
    check({"partition-id": 0, "size": 1})
    with pytest.raises(ValueError, match='size = "0.5" is not allowed; it should be number'):
        check({"partition-id": 0, "size": "0.5"})
