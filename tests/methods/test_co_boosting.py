"""Co-Boosting: hard samples, and an ensemble that learns its weights on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import seeds, tree
from common.losses import generation
from common.models.ensemble import Ensemble, weighted
from common.parse import parse
from common.protocol import Trained
from server_app.distil.one_shot import Pool
from server_app.method import Ups
from server_app.methods.co_boosting import perturbed, reweighed
from tests.support.halves import client, server
from tests.support.tiny import Run, flat

SMALL: dict[str, Any] = {
    "epochs": 3,
    "generated": 6,
    "batch_size": 6,
    "generator_steps": 3,
    "latent": 4,
    "width": 4,
}
SPECS = ("mlp@0.25", "cnn2@0.5")
LOGITS = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # of two clients for one image
Y = torch.tensor([0])


def half(method: str = "co-boosting", **changes: Any) -> Any:
    table = method.replace("-", "_")
    own = {f"{table.replace('_', '-')}__{k}": v for k, v in {**SMALL, **changes}.items()}
    return server(method=method, fleet=",".join(SPECS), **own)


def ups(made: Any, specs: tuple[str, ...] = SPECS) -> Ups[Trained]:
    """What clients send who have trained a little, each on one class alone."""
    pairs = []
    for k, spec in enumerate(specs):
        net = made.build(spec, None, "client", k).train()
        x = torch.randn(16, *made.task.shape, generator=seeds.stream(5, "seen", k))
        loss = F.cross_entropy(net(x), torch.full((16,), k))
        for p, g in zip(
            net.parameters(), torch.autograd.grad(loss, [*net.parameters()]), strict=True
        ):
            p.data.sub_(0.5 * g)
        pairs.append((client(k, model=spec), Trained(w=tree.snapshot(net))))
    return Ups.of(pairs)


def test_the_generator_s_loss_by_hand() -> None:
    # z̄ = (1, ½): p .622459, (1 − p) CE .178983; nine times the KL at temperature 3 is .280279
    taught, said = weighted(LOGITS, torch.full((2,), 0.5)), torch.tensor([[0.0, 1.0]])
    assert generation.hard_cross_entropy(taught, Y, 1.0).item() == pytest.approx(0.178983, abs=1e-6)
    apart = generation.divergence(taught, said, 3.0, everywhere=True)
    assert apart.item() == pytest.approx(0.280279, abs=1e-6)
    made = half()
    made.ensemble = [None, None]
    loss = made.generator_loss(taught, Y, said, [])
    assert loss.item() == pytest.approx(-0.101295, abs=2e-6)
    with_bn = half(bn=3.0)
    with_bn.ensemble = [None, None]  # L_BN is divided by the two clients
    more = with_bn.generator_loss(taught, Y, said, [torch.tensor(2.0), torch.tensor(4.0)])
    assert more.item() == pytest.approx(-0.101295 + 3 * 6 / 2, abs=1e-5)


def test_how_hard_a_sample_is_weighs_it_and_has_no_gradient() -> None:
    logits = torch.tensor([[1.0, 0.5]], requires_grad=True)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, Y), logits)
    (hard,) = torch.autograd.grad(generation.hard_cross_entropy(logits, Y, 2.0), logits)
    torch.testing.assert_close(hard, (1 - 0.622459) ** 2 * plain)


def test_the_ensemble_s_weights_by_hand() -> None:
    w = torch.full((2,), 0.5, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(weighted(LOGITS, w), Y), w)
    assert gradient.tolist() == pytest.approx([-0.566311, 0.566311], abs=1e-6)
    moved = reweighed(w, LOGITS, Y, 0.01 * 0.99)
    assert moved.tolist() == pytest.approx([0.5099, 0.4901])
    assert weighted(LOGITS, moved)[0].tolist() == pytest.approx([1.0198, 0.4901])
    assert reweighed(w, LOGITS, Y, 0.7).tolist() == pytest.approx([1.0, 0.0])  # both are clipped


def test_weights_that_would_all_be_0_stay() -> None:
    # Two clients of one opinion: no gradient. A third that is wrong alone: it goes down to 0.
    same, w = torch.tensor([[[2.0, 0.0]], [[2.0, 0.0]]]), torch.tensor([0.005, 0.005])
    assert torch.equal(reweighed(w, same, Y, 0.01), w)
    alone = torch.tensor([0.0, 0.005])  # the one that is wrong is all there is
    wrong = torch.tensor([[[0.0, 0.0]], [[0.0, 3.0]]])
    moved = reweighed(alone, wrong, Y, 0.01)
    assert moved[0] > 0 or torch.equal(moved, alone)
    assert float(moved.sum()) > 0


def test_images_move_by_hand() -> None:
    # z̄ = (x, −x) at x = ½ with u = (1, −½): gradient .184601, so the image goes up by ε
    class Opposed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x], dim=1)

    x, u = torch.tensor([[0.5]], requires_grad=True), torch.tensor([[1.0, -0.5]])
    (gradient,) = torch.autograd.grad((u * torch.softmax(Opposed()(x) / 4, dim=1)).sum(), x)
    assert gradient.item() == pytest.approx(0.184601, abs=1e-6)
    assert perturbed(Opposed(), x, u, 8 / 255).item() == pytest.approx(0.531373, abs=1e-6)


def test_one_client_s_weight_changes_no_bit() -> None:
    made = half()
    ensemble = Ensemble([made.build("cnn2@0.5")])
    x = torch.randn(3, *made.task.shape, generator=seeds.stream(0, "x"))
    before = ensemble(x)
    ensemble.weights = torch.tensor([0.3])
    assert torch.equal(ensemble(x), before) and torch.equal(before, ensemble.nets[0](x))


def test_without_what_is_its_own_it_is_dense() -> None:
    same = {
        "adversarial": "disagreement",
        "adv_temperature": 1.0,
        "view": "augmented",
        "temperature": 20.0,
        "student_lr": 0.005,
        "student_decay": 0.0,
        "student_cosine": False,
        "clip": 0.0,
        "bn": 0.0,
    }
    dense = half("dense", **same)
    ours = half(**same, hs=0.0, mu=0.0, epsilon=0.0)
    for made in (dense, ours):
        made.step(1, ups(made))
    for name, value in dense.w.items():
        torch.testing.assert_close(ours.w[name], value, rtol=1e-5, atol=1e-6)


def test_a_client_whose_labels_are_wrong_loses_its_weight() -> None:
    made = half(mu=0.05)
    made.step(1, ups(made))
    ensemble = made.ensemble
    ensemble.weights = torch.full((2,), 0.5)
    x = torch.rand(6, *made.task.shape, generator=seeds.stream(0, "x"))
    with torch.no_grad():
        y = ensemble.each(x)[1].argmax(1)  # what client 1 says is right
        assert not torch.equal(ensemble.each(x)[0].argmax(1), y)
    pool = Pool(made.task, made.options)
    pool.add(x, y)
    made.improve(0, pool)
    assert ensemble.weights.tolist() == [0.5, 0.5]  # not in the first epoch
    for e in range(1, 4):
        made.improve(e, pool)
    assert ensemble.weights[1] > 0.5 > ensemble.weights[0]


@pytest.mark.parametrize("switch", [{"hs": 0.0}, {"mu": 0.0}, {"epsilon": 0.0}, {"bn": 1.0}])
def test_every_switch_does_something(switch: dict[str, Any]) -> None:
    plain, changed = trained(), trained(**switch)
    assert any(not torch.equal(plain[name], changed[name]) for name in plain)


@cache
def trained(**changes: Any) -> dict[str, Tensor]:
    """The student after two epochs with other settings."""
    made = half(epochs=2, generator_steps=2, **changes)
    made.step(1, ups(made))
    w: dict[str, Tensor] = made.w
    return w


def test_both_ensembles_are_scored(run: Run) -> None:
    own = {f"co-boosting__{k}": v for k, v in SMALL.items()}
    entry = run(method="co-boosting", rounds=1, fleet=",".join(SPECS), **own).journal[1]
    assert entry["accuracies"].keys() == {"global", "ensemble", "weighted-ensemble"}
    assert 0 <= entry["metrics"]["least_weight"] <= entry["metrics"]["largest_weight"] <= 1


def test_clients_clip_their_gradients_at_10() -> None:
    assert parse(flat(Path("nowhere"), method="co-boosting")).train.clip == 10.0
    assert parse(flat(Path("nowhere"), method="dense")).train.clip == 0.0
