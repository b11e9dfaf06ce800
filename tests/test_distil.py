"""Distillation on a public set and without data."""

import math
from typing import Any

import pytest
import torch

from common.data.embedded import toy
from common.losses.distillation import kl
from common.models import build
from common.techniques.datafree import DataFree, is_adversarial, new_generator
from common.techniques.public_set import digest, subset
from common.training import optimise, tree
from common.training.fit import fit
from common.training.task import Task
from tests.support import halves
from tests.support.halves import task


def test_everybody_draws_the_same_subset_and_another_in_each_round():
    first, again = (subset(halves.task(public__subset=20), 1, 100) for _ in range(2))
    assert torch.equal(first, again) and len(first) == 20 == len(first.unique())
    assert torch.equal(first, first.sort().values)
    assert not torch.equal(first, subset(halves.task(public__subset=20), 2, 100))


@pytest.mark.parametrize("n", [0, 100, 5000])
def test_all_are_taken_where_no_fewer_are_asked_for(n):
    assert torch.equal(subset(halves.task(public__subset=n), 3, 100), torch.arange(100))


def test_what_is_learnt_is_what_the_targets_say():
    task = halves.task(public__epochs=40, public__lr=0.1, public__batch_size=16)
    net = task.build("cnn2", name=("init",))
    x = torch.randint(0, 256, (32, *task.shape), dtype=torch.uint8)
    targets = torch.zeros(32, task.num_classes)
    targets[:, 1] = 8.0
    before = float(kl(targets, task.logits(net, x)))
    first = digest(task, 1, net, x, targets, lambda z, y: kl(y, z), "digest")
    assert float(kl(targets, task.logits(net, x))) < 0.2 * before and 0 < first < before


@pytest.mark.parametrize("anneal", [False, True])
def test_the_rate_falls_over_the_steps_of_a_round_if_asked(
    anneal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = halves.task(public__anneal=anneal, public__epochs=2, public__lr=0.1)
    net, rates, made = task.build("mlp@0.25", name=("init",)), list[float](), optimise.of

    def watched(*args: Any) -> torch.optim.Optimizer:
        optimizer = made(*args)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    monkeypatch.setattr(optimise, "of", watched)
    x, y = torch.zeros(256, *task.shape, dtype=torch.uint8), torch.zeros(256).long()
    digest(task, 1, net, x, y, torch.nn.functional.cross_entropy, "digest")
    # cos² of 0, 1/8, 2/8, 3/8 of π, of four steps
    falling = [0.1, 0.0853553, 0.05, 0.0146447]
    assert rates == pytest.approx(falling if anneal else [0.1] * 4, abs=1e-6)


def test_nothing_is_learnt_where_nothing_shall_be():
    task = halves.task(public__learn=False)
    net = task.build("cnn2", name=("init",))
    before = tree.snapshot(net)
    x = torch.zeros(8, *task.shape, dtype=torch.uint8)
    assert digest(task, 1, net, x, torch.zeros(8), lambda z, y: z.sum(), "digest") == 0.0
    assert all(torch.equal(value, before[name]) for name, value in tree.snapshot(net).items())


@pytest.mark.parametrize("protect", [False, True])
def test_public_images_leave_running_statistics_alone_if_asked(protect):
    task = halves.task(public__protect_running_stats=protect, public__epochs=1)
    net = task.build("cnn2", name=("init",))
    before = tree.snapshot(net)
    x = torch.randint(0, 256, (32, *task.shape), dtype=torch.uint8)
    digest(task, 1, net, x, torch.zeros(32).long(), torch.nn.functional.cross_entropy, "digest")
    same = {n: torch.equal(value, before[n]) for n, value in tree.snapshot(net).items()}
    assert {same[n] for n in same if "running_" in n} == {protect}
    assert not any(same[n] for n in same if n.endswith("weight"))


def imagining(data: str = "toy", **changes: Any) -> Task:
    """A task with these settings of [generator]."""
    values: dict[str, Any] = {
        "lambda_oh": 0.1, "lambda_a": 0.0, "adversarial": "off", "ie_norm": True,
        "act_reduction": "mean", "update_order": "student", "lr": 0.02,
        "latent": 8, "width": 8,
    }  # fmt: skip
    given = {f"generator__{key}": value for key, value in {**values, **changes}.items()}
    return task(method="fedkf", data__name=data, **given)


def work(changes: dict[str, Any], adversarial: bool = False) -> DataFree:
    changes = {**changes, "adversarial": "on" if adversarial else "off"}
    data = toy()
    nets = [build("lenet5@0.5", data.shape, 3, seed=s) for s in (1, 2)]
    chosen = imagining(**changes)
    generator = new_generator(chosen)
    optimizer = chosen.generator_optimizer(1, generator.parameters())
    return DataFree(chosen, generator, *nets, optimizer, "latents", gamma=1.0, size=16)


def distil(datafree: DataFree, steps: int) -> dict[str, float]:
    optimizer = optimise.make(datafree.student.parameters(), "sgd", 0.05)
    nothing: list[tuple[torch.Tensor, ...]] = [()] * steps
    return fit(optimizer, datafree.batches(nothing), datafree.distance, precision="fp32")


def test_the_generator_learns_and_the_teacher_does_not() -> None:
    datafree = work({})
    before = tree.snapshot(datafree.teacher)
    distil(datafree, 30)
    after = tree.snapshot(datafree.teacher)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sum(datafree.losses[-5:]) < sum(datafree.losses[:5])
    assert len(datafree.losses) == 30


def test_the_adversarial_term_looks_for_disagreement() -> None:
    friendly, hostile = work({"lambda_oh": 0.0}), work({"lambda_oh": 0.0}, adversarial=True)
    for datafree in (friendly, hostile):  # the generator alone learns: the student's steps are nil
        frozen = optimise.make(datafree.student.parameters(), "sgd", 1e-12)
        nothing: list[tuple[torch.Tensor, ...]] = [()] * 40
        found = fit(frozen, datafree.batches(nothing), datafree.distance, precision="fp32")
        datafree.apart = found["loss"]  # type: ignore[attr-defined]
    assert hostile.apart > friendly.apart  # type: ignore[attr-defined]
    assert all(p.requires_grad for p in hostile.student.parameters())
    assert all(p.grad is None for p in hostile.student.parameters())


def test_the_order_of_updates_is_a_choice() -> None:
    results = [
        distil(work({"update_order": order}), 3)["loss"] for order in ("student", "generator")
    ]
    assert results[0] != results[1]


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_generators_loss_is_the_weighted_sum_of_its_terms(
    normalised: bool, reduction: str, adversarial: bool
) -> None:
    changes = {
        "lambda_oh": 0.3,
        "lambda_a": 0.07,
        "ie_norm": normalised,
        "act_reduction": reduction,
    }
    datafree = work(changes, adversarial)
    images, teacher = next(iter(datafree.batches([()])))
    with torch.no_grad():
        _, features = datafree.teacher.with_activations(images)
        p, q = teacher.softmax(1), datafree.student.eval()(images).softmax(1)
    mean = p.mean(0)
    entropy = -(mean * mean.log()).sum()
    expected = (1 - entropy / math.log(3)) if normalised else -entropy
    expected = expected + 0.3 * -p.max(1).values.log().mean()
    rows = features.abs()
    expected = expected + 0.07 * -(rows.mean() if reduction == "mean" else rows.sum(1).mean())
    if adversarial:
        expected = expected - (p * (p / q).log()).sum(1).mean()
    datafree = work(changes, adversarial)  # once more, to take the generator's step on that batch
    list(datafree.batches([()]))
    assert datafree.losses == [pytest.approx(expected.item(), rel=1e-5)]


@pytest.mark.parametrize(
    ("choice", "dataset", "expected"),
    [
        ("auto", "cifar10", True),
        ("auto", "cifar100", True),
        ("auto", "emnist-letters", False),
        ("cifar", "cifar10", True),
        ("cifar", "emnist-letters", False),
        ("on", "toy", True),
        ("off", "cifar10", False),
    ],
)
def test_the_adversarial_term_is_for_cifar_unless_told(
    choice: str, dataset: str, expected: bool
) -> None:
    assert is_adversarial(imagining(dataset, adversarial=choice)) is expected


def test_the_generators_weights_are_drawn_as_in_the_released_code() -> None:
    """Convolutions ~ N(0, 2 / (9 c_out)): images differ from each other from the start."""
    generator = new_generator(imagining(width=128))
    for conv in (generator.conv1, generator.conv2):
        std = math.sqrt(2 / (9 * conv.out_channels))
        assert conv.weight.std().item() == pytest.approx(std, rel=0.02)
    z = generator.latents(64, torch.Generator().manual_seed(0))
    assert generator.pixels(z).std().item() > 0.15
