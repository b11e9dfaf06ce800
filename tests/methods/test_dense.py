"""DENSE: one-shot learning on images that a generator makes up."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common import optimise, seeds, tree
from common.models.batchnorm import distances
from common.models.ensemble import Ensemble
from common.protocol import Trained
from server_app.distil.one_shot import Pool
from server_app.method import Ups
from tests.support.halves import client, server
from tests.support.tiny import Run

TINY: dict[str, Any] = {
    "method": "dense",
    "fleet": "cnn2@0.5,mlp@0.25",
    "dense__epochs": 3,
    "dense__generated": 6,
    "dense__batch_size": 6,
    "dense__generator_steps": 3,
    "dense__latent": 4,
    "dense__width": 4,
}


def half(specs: tuple[str, ...] = ("cnn2@0.5", "mlp@0.25"), **changes: Any) -> Any:
    """The server half with an ensemble of networks as clients first draw them."""
    made = server(**{**TINY, **changes})
    made.ensemble = Ensemble(nets(made, specs))
    return made


def nets(made: Any, specs: tuple[str, ...]) -> list[Any]:
    return [made.build(spec, None, "client", k) for k, spec in enumerate(specs)]


def ups(made: Any) -> Ups[Trained]:
    """What two clients send whose BatchNorm has seen something."""
    specs = ("cnn2@0.5", "mlp@0.25")
    pairs = []
    for k, net in enumerate(nets(made, specs)):
        draw = seeds.stream(5, "seen", k)
        net.train()(torch.randn(16, *made.task.shape, generator=draw))
        pairs.append((client(k, model=specs[k]), Trained(w=tree.snapshot(net))))
    return Ups.of(pairs)


class Says(nn.Module):
    """The same logits for every image; ``watches``: behind a BatchNorm layer."""

    def __init__(self, logits: list[float], *, watches: bool = False) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.norm = nn.BatchNorm1d(1) if watches else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).sum() * 0 + self.logits.expand(len(x), -1)


@pytest.mark.parametrize(("student", "expected"), [([0.0, 1.0], 2.201203), ([1.0, 0.0], 2.474077)])
def test_the_generator_s_loss_by_hand(student: list[float], expected: float) -> None:
    # The mean of (2, 0) and (0, 1) is (1, ½): CE .474077. A student who says (0, 1) names another
    # class: KL .272874. The layer's inputs 1 and 3 have mean 2 and variance 1, it has seen 0 and 1.
    made = half()
    made.ensemble = Ensemble([Says([2.0, 0.0], watches=True), Says([0.0, 1.0])])
    with distances(made.ensemble) as apart:
        taught = made.ensemble(torch.tensor([[1.0], [3.0]]))
    assert taught.tolist() == [[1.0, 0.5]] * 2 and [float(a) for a in apart] == [2.0]
    loss = made.generator_loss(taught, torch.tensor([0, 0]), torch.tensor([student] * 2), apart)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_a_student_that_is_the_only_client_has_nothing_to_learn_or_to_be_asked() -> None:
    # lenet5 has no BatchNorm, so it says the same whether it trains or not.
    made = half(("lenet5@0.5",), fleet="lenet5@0.5", dense__oh=0.0)
    (teacher,) = made.ensemble.nets
    student = made.build("lenet5@0.5", tree.snapshot(teacher))
    x = torch.randn(6, *made.task.shape, generator=seeds.stream(0, "x"))
    assert torch.equal(made.ensemble(x), teacher(x))
    images, y, least = made.imagine(student)
    assert least == 0.0
    pool = Pool(made.task, made.options)
    pool.add(images, y)
    sgd = optimise.make(student.parameters(), "sgd", 1.0)
    passes = pool.batches("crop-flip", made.stream("pool"))
    assert made.teach(student, sgd, passes) == pytest.approx(0.0, abs=1e-9)
    for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)


def test_the_batch_of_the_least_loss_is_kept_as_it_was_before_its_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, seen, says = half(dense__generator_steps=4), [], iter([3.0, 2.0, -7.0, -6.5])
    look, loss = made.seen, made.generator_loss

    def looking(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return look(images)

    def told(*given: Any) -> Tensor:
        value = loss(*given)
        return value - value.detach() + next(says)

    monkeypatch.setattr(made, "seen", looking)
    monkeypatch.setattr(made, "generator_loss", told)
    images, y, least = made.imagine(made.build("cnn2@0.5"))
    assert least == -7.0 and torch.equal(images, seen[2])
    assert not any(torch.equal(images, other) for other in (seen[0], seen[1], seen[3]))
    assert torch.equal(y, y.sort().values) and not images.requires_grad


def test_every_batch_has_a_new_generator_and_z_is_trained_with_it() -> None:
    made, first = half(), []

    def stop(*_: object) -> Tensor:
        first.append([p.detach().clone() for p in made.generator.parameters()])
        raise StopIteration

    made.generator_loss, learnt = stop, made.generator_loss
    for _ in range(2):
        with pytest.raises(StopIteration):
            made.imagine(made.build("cnn2@0.5"))
        made.generator_loss = learnt  # weights move away from their draw
        made.imagine(made.build("cnn2@0.5"))
        made.generator_loss = stop
    one, two = first
    assert not torch.equal(one[0], two[0])
    assert all(float(p.abs().max()) < 1.2 for p in two)  # nothing of what was learnt is left


def test_the_pool_only_grows_by_a_batch_an_epoch() -> None:
    made, pools = half(), []

    def improve(e: int, pool: Pool) -> None:
        pools.append(pool)
        seen.append(pool.images.clone())

    made.improve, seen = improve, list[Tensor]()
    made.step(1, ups(made))
    seen.append(pools[-1].images)
    assert [len(images) for images in seen] == [0, 6, 12, 18]
    assert all(torch.equal(now[: len(was)], was) for was, now in pairwise(seen))
    assert float(seen[-1].min()) > 0 and float(seen[-1].max()) < 1


def test_l_bn_is_real() -> None:
    # Alone it still moves the images, towards what the clients' layers have seen.
    changes = {"dense__oh": 0.0, "dense__adv": 0.0, "dense__view": "plain"}
    made = half(**changes, dense__generator_lr=0.02, dense__generator_steps=12)
    losses: list[float] = []
    loss = made.generator_loss

    def note(taught: Tensor, y: Tensor, said: Tensor, apart: list[Tensor]) -> Tensor:
        assert len(apart) == 4  # two layers of either client
        value: Tensor = loss(taught, y, said, apart)
        losses.append(float(value.detach()))
        return value

    made.generator_loss = note
    _, _, least = made.imagine(made.build("cnn2@0.5"))
    assert 0 < least == min(losses) < losses[0] and losses[-1] < losses[0]


@pytest.mark.parametrize(
    "switch",
    [
        {"bn": 0.0},
        {"oh": 0.5},
        {"adv": 3.0, "adversarial": "all"},
        {"adversarial": "all"},
        {"adversarial": "all", "adv_temperature": 2.0},
        {"view": "plain"},
        {"augment": "none"},
        {"augment": "flip"},
        {"temperature": 2.0},
        {"student_decay": 0.1},
        {"student_cosine": True},
        {"student_momentum": 0.0},
        {"clip": 0.01},
        {"generator_lr": 0.01},
    ],
)
def test_every_switch_does_something(switch: dict[str, Any]) -> None:
    base = {"adversarial": "all"} if "adv_temperature" in switch else {}
    plain, changed = trained(**base), trained(**switch)
    assert any(not torch.equal(plain[name], changed[name]) for name in plain)


@cache
def trained(**changes: Any) -> dict[str, Tensor]:
    """The student after two epochs with other settings."""
    named = {f"dense__{key}": value for key, value in changes.items()}
    made = server(**{**TINY, "dense__epochs": 2, "dense__generator_steps": 2, **named})
    made.step(1, ups(made))
    w: dict[str, Tensor] = made.w
    return w


def test_clients_train_alone_and_the_server_scores_their_ensemble_itself(run: Run) -> None:
    ours, local = run(**TINY), run(method="local", fleet=TINY["fleet"])
    for mine, theirs in zip(ours.journal[1:], local.journal[1:], strict=True):
        assert mine["client_metrics"] == theirs["client_metrics"]  # they go on from their own
        assert mine["accuracies"].keys() == {"global", "ensemble"}
    assert "accuracies" not in ours.journal[0]
    assert all("accuracies" not in score for score in ours.journal[2]["scores"])
    assert [score["accuracy"] for score in ours.journal[2]["scores"]] == [
        score["accuracy"] for score in local.journal[2]["scores"]
    ]
    moved, expected = ours.journal[1]["bytes"], half().task.expected
    sizes = [
        sum(value.numel() * value.element_size() for value in expected(spec).values())
        for spec in TINY["fleet"].split(",")
    ]
    assert moved["arrays_down"] == 0 and moved["arrays_up"] == 2 * sum(sizes)  # four clients


def test_a_further_round_begins_anew_with_the_models_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (server(**TINY) for _ in range(2))
    one.step(2, ups(one))
    two.step(1, ups(two))
    first = two.w
    two.step(2, ups(two))
    assert all(torch.equal(one.w[name], two.w[name]) for name in one.w)
    assert any(not torch.equal(first[name], two.w[name]) for name in first)
