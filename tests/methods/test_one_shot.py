"""One-shot learning on images that a generator makes up: DENSE and Co-Boosting."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import seeds
from common.exchange import tree
from common.exchange.protocol import ModelReply
from common.losses import generation
from common.models.batchnorm import distances
from common.models.ensemble import Ensemble, weighted
from common.parse import parse
from common.training import optimise
from server_app.distillation.one_shot import Pool
from server_app.method import Replies
from server_app.methods.co_boosting import perturbed, reweighed
from tests.support.halves import client, server
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat, overrides, under
from tests.support.weights import same

DENSE = ("cnn2@0.5", "mlp@0.25")
SMALL = {"epochs": 3, "generated": 6, "batch_size": 6}
SMALL |= {"generator_steps": 3, "latent": 4, "width": 4}
TINY = {"method": "dense", "fleet": ",".join(DENSE), **under("dense", **SMALL)}


def half(specs: tuple[str, ...] = DENSE, **changes: Any) -> Any:
    """The server half with an ensemble of networks as clients first draw them."""
    made = server(**{**TINY, **changes})
    made.ensemble = Ensemble(nets(made, specs))
    return made


def nets(made: Any, specs: tuple[str, ...]) -> list[Any]:
    return [made.build(spec, None, "client", k) for k, spec in enumerate(specs)]


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
    images, y, least = made.generate(student)
    assert least == 0.0
    pool = Pool(made.task, made.options)
    pool.add(images, y)
    sgd = optimise.make(student.parameters(), "sgd", 1.0)
    passes = pool.batches("crop-flip", made.stream("pool"))
    assert made.teach(student, sgd, passes) == pytest.approx(0.0, abs=1e-9)
    for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)


def test_the_batch_of_the_least_loss_is_kept_as_it_was_before_its_view(monkeypatch) -> None:
    made, says = half(dense__generator_steps=4), iter([3.0, 2.0, -7.0, -6.5])
    seen = record_calls(monkeypatch, made, "seen", lambda _, images: images.detach().clone())
    loss = made.generator_loss
    made.generator_loss = lambda *given: (value := loss(*given)) - value.detach() + next(says)
    images, y, least = made.generate(made.build("cnn2@0.5"))
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
            made.generate(made.build("cnn2@0.5"))
        made.generator_loss = learnt  # weights move away from their draw
        made.generate(made.build("cnn2@0.5"))
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
    made.step(1, replies(made, DENSE, 0.0))
    seen.append(pools[-1].images)
    assert [len(images) for images in seen] == [0, 6, 12, 18]
    assert all(torch.equal(now[: len(was)], was) for was, now in pairwise(seen))
    assert float(seen[-1].min()) > 0 and float(seen[-1].max()) < 1


def test_l_bn_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    # Alone it still moves the images, towards what the clients' layers have seen.
    changes: dict[str, Any] = {"dense__oh": 0.0, "dense__adv": 0.0, "dense__view": "plain"}
    made = half(**changes, dense__generator_lr=0.02, dense__generator_steps=12)
    calls = record_calls(
        monkeypatch, made, "generator_loss", lambda loss, *given: (float(loss), len(given[3]))
    )
    _, _, least = made.generate(made.build("cnn2@0.5"))
    losses = [loss for loss, _ in calls]
    assert {layers for _, layers in calls} == {4}, "two layers of either client"
    assert 0 < least == min(losses) < losses[0] and losses[-1] < losses[0]


def test_the_server_scores_the_ensemble_itself_and_the_clients_networks_travel(run: Run) -> None:
    ours = run(**TINY)
    assert all(entry["accuracies"].keys() == {"global", "ensemble"} for entry in ours.journal[1:])
    assert "accuracies" not in ours.journal[0]
    assert all("accuracies" not in score for score in ours.journal[2]["scores"])
    expected = half().task.expected
    size = sum(value.nbytes for spec in DENSE for value in expected(spec).values())
    moved = ours.journal[1]["bytes"]
    assert moved["arrays_down"] == 0 and moved["arrays_up"] == 2 * size  # four clients


def test_a_further_round_begins_anew_with_the_models_it_is_sent() -> None:
    one, two = (server(**TINY) for _ in range(2))
    one.step(2, replies(one, DENSE, 0.0))
    two.step(1, replies(two, DENSE, 0.0))
    first = two.w
    two.step(2, replies(two, DENSE, 0.0))
    assert same(one.w, two.w) and not same(first, two.w)


SPECS = ("mlp@0.25", "cnn2@0.5")
LOGITS = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # of two clients for one image
Y = torch.tensor([0])


def boosting(method: str = "co-boosting", **changes: Any) -> Any:
    fleet = ",".join(DENSE if method == "dense" else SPECS)
    return server(method=method, fleet=fleet, **under(method, **{**SMALL, **changes}))


def replies(made: Any, specs: tuple[str, ...] = SPECS, rate: float = 0.5) -> Replies[ModelReply]:
    """What clients send who have trained a little, each on one class alone."""
    pairs = []
    for k, spec in enumerate(specs):
        net = made.build(spec, None, "client", k).train()
        x = torch.randn(16, *made.task.shape, generator=seeds.stream(5, "seen", k))
        loss = F.cross_entropy(net(x), torch.full((16,), k))
        parameters = [*net.parameters()]
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data.sub_(rate * g)
        pairs.append((client(k, model=spec), ModelReply(w=tree.snapshot(net))))
    return Replies.of(pairs)


def test_the_generator_s_loss_of_co_boosting_by_hand() -> None:
    # z̄ = (1, ½): p .622459, (1 − p) CE .178983; nine times the KL at temperature 3 is .280279
    taught, said = weighted(LOGITS, torch.full((2,), 0.5)), torch.tensor([[0.0, 1.0]])
    assert generation.hard_cross_entropy(taught, Y, 1.0).item() == pytest.approx(0.178983, abs=1e-6)
    apart = generation.divergence(taught, said, 3.0, everywhere=True)
    assert apart.item() == pytest.approx(0.280279, abs=1e-6)
    made = boosting()
    made.ensemble = [None, None]
    loss = made.generator_loss(taught, Y, said, [])
    assert loss.item() == pytest.approx(-0.101295, abs=2e-6)
    with_bn = boosting(bn=3.0)
    with_bn.ensemble = [None, None]  # L_BN is divided by the two clients
    more = with_bn.generator_loss(taught, Y, said, [torch.tensor(2.0), torch.tensor(4.0)])
    assert more.item() == pytest.approx(-0.101295 + 3 * 6 / 2, abs=1e-5)
    logits = torch.tensor([[1.0, 0.5]], requires_grad=True)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, Y), logits)
    (hard,) = torch.autograd.grad(generation.hard_cross_entropy(logits, Y, 2.0), logits)
    torch.testing.assert_close(hard, (1 - 0.622459) ** 2 * plain)


def test_the_ensemble_s_weights_and_moved_images_by_hand() -> None:
    w = torch.full((2,), 0.5, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(weighted(LOGITS, w), Y), w)
    assert gradient.tolist() == pytest.approx([-0.566311, 0.566311], abs=1e-6)
    moved = reweighed(w, LOGITS, Y, 0.01 * 0.99)
    assert moved.tolist() == pytest.approx([0.5099, 0.4901])
    assert weighted(LOGITS, moved)[0].tolist() == pytest.approx([1.0198, 0.4901])
    assert reweighed(w, LOGITS, Y, 0.7).tolist() == pytest.approx([1.0, 0.0])  # both are clipped
    # two clients of one opinion have no gradient
    opinion, low = torch.tensor([[[2.0, 0.0]], [[2.0, 0.0]]]), torch.tensor([0.005, 0.005])
    assert torch.equal(reweighed(low, opinion, Y, 0.01), low)
    # the one that is wrong is all there is: the weights would all be 0
    alone, wrong = torch.tensor([0.0, 0.005]), torch.tensor([[[0.0, 0.0]], [[0.0, 3.0]]])
    assert float(reweighed(alone, wrong, Y, 0.01).sum()) > 0

    # z̄ = (x, −x) at x = ½ with u = (1, −½): gradient .184601, so the image goes up by ε
    class Opposed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x], dim=1)

    x, u = torch.tensor([[0.5]], requires_grad=True), torch.tensor([[1.0, -0.5]])
    (gradient,) = torch.autograd.grad((u * torch.softmax(Opposed()(x) / 4, dim=1)).sum(), x)
    assert gradient.item() == pytest.approx(0.184601, abs=1e-6)
    assert perturbed(Opposed(), x, u, 8 / 255).item() == pytest.approx(0.531373, abs=1e-6)


def test_one_client_s_weight_changes_no_bit() -> None:
    made = boosting()
    ensemble = Ensemble([made.build("cnn2@0.5")])
    x = torch.randn(3, *made.task.shape, generator=seeds.stream(0, "x"))
    before = ensemble(x)
    ensemble.weights = torch.tensor([0.3])
    assert torch.equal(ensemble(x), before) and torch.equal(before, ensemble.nets[0](x))


def test_without_what_is_its_own_it_is_dense() -> None:
    settings: dict[str, Any] = {"adversarial": "disagreement", "adv_temperature": 1.0}
    settings |= {"view": "augmented", "temperature": 20.0, "student_lr": 0.005}
    settings |= {"student_decay": 0.0, "student_cosine": False, "clip": 0.0, "bn": 0.0}
    dense = boosting("dense", **settings)
    ours = boosting(**settings, hs=0.0, mu=0.0, epsilon=0.0)
    for made in (dense, ours):
        made.step(1, replies(made))
    torch.testing.assert_close(ours.w, dense.w, rtol=1e-5, atol=1e-6)


def test_a_client_whose_labels_are_wrong_loses_its_weight() -> None:
    made = boosting(mu=0.05)
    made.step(1, replies(made))
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


def test_a_pool_of_bytes_has_the_values_of_an_image_file() -> None:
    made = half(dense__pool_dtype="uint8")
    pool, plain = Pool(made.task, made.options), Pool(made.task, half().options)
    images = torch.rand(6, *made.task.shape, generator=seeds.stream(0, "x"))
    images[0, 0, 0, :3] = torch.tensor([0.5, 1.0, 0.0])
    for each in (pool, plain):
        each.add(images, torch.arange(6))
    # a file takes the whole part of 255 x: 127 for ½, 254 up to just below 1
    assert pool.images[0, 0, 0, :3].tolist() == [127, 255, 0]
    png = (images.numpy() * 255).astype("uint8")
    assert pool.images.nbytes * 4 == plain.images.nbytes and (pool.images.numpy() == png).all()
    for way in ("none", "crop-flip"):
        passes = (p.batches(way, seeds.stream(0, "order")) for p in (pool, plain))
        (read, y), (exact, _) = (next(iter(batches)) for batches in passes)
        lost = (exact - read) * torch.tensor(made.task.std).view(1, -1, 1, 1)
        assert float(lost.min()) > -1e-6 and 0 < float(lost.max()) < 1 / 255
    assert sorted(y.tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("method", "data", "default", "as_released"),
    [
        ("dense", "svhn", ["crop-flip"], ["flip"]),
        ("dense", "cifar10", ["crop-flip"], ["crop-flip"]),
        ("co-boosting", "cifar100", ["none", "crop-flip"], ["crop-flip", "crop-flip"]),
        ("co-boosting", "svhn", ["none", "crop-flip"], ["none", "none"]),
    ],
)
def test_released_augmentation_of_the_pool_depends_on_the_data_set(
    method: str, data: str, default: list[str], as_released: list[str], monkeypatch: Any
) -> None:
    ways = record_calls(monkeypatch, Pool, "batches", lambda _, pool, augment, draw: augment)
    for how, expected in (("augment", default), ("released", as_released)):
        made = boosting(method, pool_augment=how)
        named = made.config.data.model_copy(update={"name": data})
        monkeypatch.setattr(made, "config", made.config.model_copy(update={"data": named}))
        made.step(1, replies(made, DENSE if method == "dense" else SPECS))
        assert ways[-len(expected) :] == expected


SWITCHES = {
    "dense": "pool-augment=released pool-dtype=uint8 bn=0.0 oh=0.5 adv=3.0&adversarial=all "
    "adversarial=all adversarial=all&adv-temperature=2.0 view=plain augment=none augment=flip "
    "temperature=2.0 student-decay=0.1 student-cosine=true student-momentum=0.0 clip=0.01 "
    "generator-lr=0.01",
    "co-boosting": "pool-augment=released hs=0.0 mu=0.0 epsilon=0.0 bn=1.0 pool-dtype=uint8",
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "switch"), [(name, one) for name, all_ in SWITCHES.items() for one in all_.split()]
)
def test_every_switch_does_something(method: str, switch: str) -> None:
    base = ["adversarial=all"] if "adv-temperature" in switch else []
    assert not same(trained(method, *base), trained(method, *switch.split("&")))


@cache
def trained(method: str, *changes: str) -> dict[str, Tensor]:
    """Return the student after two epochs with other settings."""
    fleet = ",".join(DENSE if method == "dense" else SPECS)
    settings = under(method, **{**SMALL, "epochs": 2, "generator_steps": 2})
    given = overrides(" ".join(f"{method}.{change}" for change in changes))
    made = server(method=method, fleet=fleet, **settings, **given)
    made.step(1, replies(made, DENSE, 0.0) if method == "dense" else replies(made))
    w: dict[str, Tensor] = made.w
    return w


def test_both_ensembles_are_scored(run: Run) -> None:
    small = under("co-boosting", **SMALL)
    entry = run(method="co-boosting", rounds=1, fleet=",".join(SPECS), **small).journal[1]
    assert entry["accuracies"].keys() == {"global", "ensemble", "weighted-ensemble"}
    assert 0 <= entry["metrics"]["least_weight"] <= entry["metrics"]["largest_weight"] <= 1


def test_clients_clip_their_gradients_at_10() -> None:
    assert parse(flat(Path("nowhere"), method="co-boosting")).train.clip == 10.0
    assert parse(flat(Path("nowhere"), method="dense")).train.clip == 0.0
