"""The subset of a round, and learning from what somebody says about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common import optimise, tree
from common.losses.distillation import kl
from common.public_set import digest, subset
from tests.support import halves


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
