"""Distillation on a public set and without data."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from common.data.embedded import toy
from common.exchange import tree
from common.losses.distillation import kl
from common.models import build
from common.techniques.datafree import DataFree, is_adversarial, new_generator
from common.techniques.public_set import digest, subset
from common.training import optimise
from common.training.fit import fit
from common.training.task import Task
from tests.support.halves import task
from tests.support.tiny import under
from tests.support.weights import same


def test_everybody_draws_the_same_subset_and_another_in_each_round():
    first, again, other = (subset(task(public__subset=20), t, 100) for t in (1, 1, 2))
    assert torch.equal(first, again) and len(first) == 20 == len(first.unique())
    assert torch.equal(first, first.sort().values) and not torch.equal(first, other)
    for n in (0, 100, 5000):
        assert torch.equal(subset(task(public__subset=n), 3, 100), torch.arange(100))


def digested(y: torch.Tensor, loss: Any = F.cross_entropy, **settings: Any) -> tuple[Any, ...]:
    """Return a task, 32 images, the mean loss of learning ``y`` on them, and w before and after."""
    ours = task(**under("public", **settings))
    net = ours.build("cnn2", name=("init",))
    before = tree.snapshot(net)
    x = torch.randint(0, 256, (len(y), *ours.shape), dtype=torch.uint8)
    return ours, x, digest(ours, 1, net, x, y, loss, "digest"), before, net


def test_what_is_learnt_is_what_the_targets_say():
    targets = torch.zeros(32, 3)
    targets[:, 1] = 8.0
    given = {"epochs": 40, "lr": 0.1, "batch_size": 16}
    ours, x, first, before, net = digested(targets, lambda z, y: kl(y, z), **given)
    start = ours.build("cnn2", name=("init",))
    start.load_state_dict(before)
    was, now = (float(kl(targets, ours.logits(one, x))) for one in (start, net))
    assert now < 0.2 * was and 0 < first < was


@pytest.mark.parametrize("anneal", [False, True])
def test_the_rate_falls_in_a_round_if_asked(anneal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, made = list[float](), optimise.of

    def watched(*args: Any) -> torch.optim.Optimizer:
        optimizer = made(*args)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    monkeypatch.setattr(optimise, "of", watched)
    digested(torch.zeros(256).long(), anneal=anneal, epochs=2, lr=0.1)
    # cos² of 0, 1/8, 2/8, 3/8 of π, of four steps
    falling = [0.1, 0.0853553, 0.05, 0.0146447]
    assert rates == pytest.approx(falling if anneal else [0.1] * 4, abs=1e-6)


def test_nothing_is_learnt_where_nothing_shall_be():
    _, _, loss, before, net = digested(torch.zeros(8).long(), learn=False)
    assert loss == 0.0 and same(before, tree.snapshot(net))


@pytest.mark.parametrize("protect", [False, True])
def test_public_images_leave_running_statistics_alone_if_asked(protect):
    given = {"protect_running_stats": protect, "epochs": 1}
    *_, before, net = digested(torch.zeros(32).long(), **given)
    equal = {n: torch.equal(value, before[n]) for n, value in tree.snapshot(net).items()}
    assert {equal[n] for n in equal if "running_" in n} == {protect}
    assert not any(equal[n] for n in equal if n.endswith("weight"))


def imagining(data: str = "toy", **changes: Any) -> Task:
    """A task with these settings of [generator]."""
    values = {"lambda_oh": 0.1, "lambda_a": 0.0, "adversarial": "off", "ie_norm": True}
    values |= {"act_reduction": "mean", "update_order": "student", "lr": 0.02}
    given = {**values, "latent": 8, "width": 8, **changes}
    return task(method="fedkf", data__name=data, **under("generator", **given))


def work(changes: dict[str, Any], adversarial: bool = False) -> DataFree:
    changes = {**changes, "adversarial": "on" if adversarial else "off"}
    data = toy()
    nets = [build("lenet5@0.5", data.shape, 3, seed=s) for s in (1, 2)]
    chosen = imagining(**changes)
    generator = new_generator(chosen)
    optimizer = chosen.generator_optimizer(1, generator.parameters())
    return DataFree(chosen, generator, *nets, optimizer, "latents", gamma=1.0, size=16)


def distil(datafree: DataFree, steps: int, lr: float = 0.05) -> dict[str, float]:
    optimizer = optimise.make(datafree.student.parameters(), "sgd", lr)
    nothing: list[tuple[torch.Tensor, ...]] = [()] * steps
    return fit(optimizer, datafree.batches(nothing), datafree.distance, precision="fp32")


def test_the_generator_learns_and_the_teacher_does_not() -> None:
    datafree = work({})
    before = tree.snapshot(datafree.teacher)
    distil(datafree, 30)
    assert same(before, tree.snapshot(datafree.teacher)) and len(datafree.losses) == 30
    assert sum(datafree.losses[-5:]) < sum(datafree.losses[:5])


def test_the_adversarial_term_looks_for_disagreement() -> None:
    apart = []
    for adversarial in (False, True):  # the generator alone learns: the student's steps are nil
        datafree = work({"lambda_oh": 0.0}, adversarial=adversarial)
        apart.append(distil(datafree, 40, lr=1e-12)["loss"])
        assert all(p.requires_grad and p.grad is None for p in datafree.student.parameters())
    assert apart[1] > apart[0]


def test_the_order_of_updates_is_a_choice() -> None:
    student, generator = (distil(work({"update_order": o}), 3) for o in ("student", "generator"))
    assert student["loss"] != generator["loss"]


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize(("normalised", "reduction"), [(False, "mean"), (True, "sum")])
def test_the_generators_loss_is_the_weighted_sum_of_its_terms(
    normalised: bool, reduction: str, adversarial: bool
) -> None:
    changes = {"lambda_oh": 0.3, "lambda_a": 0.07}
    changes |= {"ie_norm": normalised, "act_reduction": reduction}
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


def test_the_adversarial_term_is_for_cifar_unless_told() -> None:
    for choice, datasets in {
        "auto": {"cifar10": True, "cifar100": True, "emnist-letters": False},
        "cifar": {"cifar10": True, "emnist-letters": False},
        "on": {"toy": True},
        "off": {"cifar10": False},
    }.items():
        found = {name: is_adversarial(imagining(name, adversarial=choice)) for name in datasets}
        assert found == datasets, choice


def test_the_generators_weights_are_drawn_as_in_the_released_code() -> None:
    """Convolutions ~ N(0, 2 / (9 c_out)): images differ from each other from the start."""
    generator = new_generator(imagining(width=128))
    for conv in (generator.conv1, generator.conv2):
        std = math.sqrt(2 / (9 * conv.out_channels))
        assert conv.weight.std().item() == pytest.approx(std, rel=0.02)
    z = generator.latents(64, torch.Generator().manual_seed(0))
    assert generator.pixels(z).std().item() > 0.15
