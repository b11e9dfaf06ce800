"""Losses by hand: of generators, of features, on hard samples, of ensembles."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from common.losses import generation
from common.losses.distillation import (
    kl,
    kl_divergence,
    kl_from,
    max_ensemble,
    opinion,
    soft_cross_entropy,
)
from common.losses.generation import activation, diversity, information_entropy, one_hot
from common.losses.gradients import alleviated, slope

# softmax of these rows: (.8, .1, .1) and (.2, .6, .2)
LOGITS = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]]).log()
TEACHER = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
STUDENT = torch.tensor([[1.0, 0.0], [1.0, -3.0]])
WEIGHTS = torch.tensor([0.5, 0.25])
# softmax of these rows: (.5, .25, .25) and (.2, .2, .6)
A = torch.tensor([[0.5, 0.25, 0.25]]).log()
B = torch.tensor([[0.2, 0.2, 0.6]]).log()


MOST = torch.tensor([0.5, 0.25, 0.6])  #: the largest probability of each class
TWO = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])]


def test_one_hot_is_the_surprise_at_ones_own_choice() -> None:
    # −(log .8 + log .6) / 2
    assert one_hot(LOGITS).item() == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)


def test_information_entropy_is_that_of_the_batch_not_of_its_rows() -> None:
    # the rows' mean is (.5, .35, .15)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.35, 0.15))
    assert information_entropy(LOGITS, normalised=False).item() == pytest.approx(-entropy)
    normalised = information_entropy(LOGITS, normalised=True).item()
    assert normalised == pytest.approx(1 - entropy / math.log(3))
    for logits, expected in ((40 * torch.eye(4), 0), (40 * torch.eye(4)[[0, 0, 0]], 1)):
        found = information_entropy(logits, normalised=True).item()
        assert found == pytest.approx(expected, abs=1e-6)


def test_activation_is_the_negative_l1_norm_or_the_mean() -> None:
    features = torch.tensor([[1.0, -2.0], [0.0, 5.0]])
    # norms 3 and 5, their mean 4; the mean of the four entries is 2
    assert activation(features, "sum").item() == -4.0
    assert activation(features, "mean").item() == -2.0


def test_diversity_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    features = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 4.0]])
    # d(z) = 4/2 = 2, d(f) = 3/3 = 1 for the two pairs i ≠ j of four: the mean is 2·2/4 = 1
    assert diversity(z, features).item() == pytest.approx(math.exp(-1.0))
    # of images: mean|(0, 0) − (1, 3)| = 2, latents mean((0 − 2)²) = 4: exp(−(2 · 4 · 2) / 4)
    x, z = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [2.0]])
    assert generation.diversity(z, x).item() == pytest.approx(math.exp(-4))
    latents = torch.arange(6.0).view(3, 2)
    for outputs in (torch.ones(3, 4), torch.ones(3, 1, 2, 2)):
        assert diversity(latents, outputs).item() == 1.0, "equal outputs are worst"


def test_opposed_gradients_by_hand() -> None:
    # a = 2² + 0 + 1² = 5, b = 2·(−3) + 0·4 + 1·1 = −5, Z = G_IN + 1 · G_local
    g_in = [torch.tensor([-3.0, 4.0]), torch.tensor([[1.0]])]
    g_local = [torch.tensor([2.0, 0.0]), torch.tensor([[1.0]])]
    first, second = alleviated(g_in, g_local)
    assert first.tolist() == [-1.0, 4.0] and second.tolist() == [[2.0]]
    for agreeing in ([3.0, 0.0], [0.0, 0.0]):  # b = 3 ≥ 0, or 0
        (z,) = alleviated([torch.tensor([1.0, 2.0])], [torch.tensor(agreeing)])
        assert z.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("seed", range(8))
def test_equation_13_solves_equation_10(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g_in, g_local = rng.normal(size=(2, 6))
    if seed % 2:  # make sure that half of them are opposed
        g_in = g_in - 2 * g_local
    z = alleviated([torch.tensor(g_in)], [torch.tensor(g_local)])[0].numpy()
    assert z @ g_local >= -1e-9
    # z is the nearest of a convex set if no way into the set leads towards g_in
    others = rng.normal(size=(1000, 6)) * 10
    others -= np.minimum(others @ g_local, 0)[:, None] * g_local / (g_local @ g_local)
    assert (others @ g_local >= -1e-9).all()
    assert ((others - z) @ (g_in - z) <= 1e-9).all()


def test_a_value_gets_the_gradient_it_is_given() -> None:
    w = torch.tensor([2.0, -1.0], requires_grad=True)
    loss = torch.tensor(7.0) + slope([torch.tensor([3.0, 4.0])], [w])
    assert loss.item() == 7.0
    (gradient,) = torch.autograd.grad(loss, [w])
    assert gradient.tolist() == [3.0, 4.0]


def test_disagreement_is_the_weighted_mean_distance_of_logits() -> None:
    # rows: mean(1, 0) = .5 and mean(0, 4) = 2; (.5 · .5 + .25 · 2) / 2 = .375
    assert (WEIGHTS * generation.disagreement(TEACHER, STUDENT)).mean().item() == pytest.approx(
        0.375
    )


def test_soft_cross_entropy_is_of_each_sample() -> None:
    # a uniform student is log 2 away from every teacher
    assert_close(soft_cross_entropy(TEACHER, torch.zeros(2, 2)), torch.full((2,), math.log(2)))


def test_divergences_are_sums_of_terms_by_sample_and_class() -> None:
    terms = kl_divergence(TEACHER, STUDENT, 2.0)
    p, q = torch.softmax(TEACHER / 2, 1), torch.softmax(STUDENT / 2, 1)
    assert_close(terms, p * (p / q).log())
    assert_close(kl_divergence(p.log(), q.log(), given="logs"), terms)
    assert_close(kl_divergence(p, STUDENT, 2.0, "shares"), terms)
    assert_close(kl(TEACHER, STUDENT, 2.0), terms.sum(1).mean())
    assert_close(kl(p.log(), q.log(), given="logs", reduction="mean"), terms.mean())


@pytest.mark.parametrize(
    ("teachers", "norm", "T", "expected"),
    [
        ([A, B], "none", 1.0, MOST),
        ([A, B], "sum", 1.0, MOST / 1.35),
        ([A, B], "softmax", 1.0, MOST.exp() / MOST.exp().sum()),
        # softmax(log p / 2) ∝ √p: (√.5, .5, .5) / (√.5 + 1)
        ([A], "sum", 2.0, torch.tensor([math.sqrt(0.5), 0.5, 0.5]) / (math.sqrt(0.5) + 1)),
        *(([B], norm, 1.0, torch.tensor([0.2, 0.2, 0.6])) for norm in ("sum", "none")),
    ],
)
def test_the_largest_probabilities_by_hand(
    teachers: list[torch.Tensor], norm: str, T: float, expected: torch.Tensor
) -> None:
    assert torch.allclose(max_ensemble(teachers, norm, T)[0], expected)


def test_the_divergence_from_one_teacher_is_the_usual_one() -> None:
    draw = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(2, 5, 4, generator=draw)
    got = kl_from(max_ensemble([teacher], "sum", 3.0), student, 3.0)
    assert got.item() == pytest.approx(kl(teacher, student, 3.0).item(), rel=1e-5)


def test_the_student_s_gradient_is_softmax_minus_targets_over_n() -> None:
    student = torch.zeros(2, 2, requires_grad=True)
    kl_from(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), student).backward()
    expected = torch.tensor([[0.5 - 0.75, 0.5 - 0.25], [0.5 - 1, 0.5]]) / 2
    assert torch.allclose(student.grad, expected)


def test_a_certain_teacher_gives_a_finite_loss() -> None:
    certain = max_ensemble([torch.tensor([[1000.0, 0.0]])], "sum")
    assert kl_from(certain, torch.zeros(1, 2)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("how", "T", "first"),
    [
        ("logits", 1.0, 0.622459),  # softmax of (1, .5)
        ("logits", 2.0, 0.562177),
        ("mean", 1.0, 0.574869),  # of .880797 and .268941
        ("mean", 2.0, 0.554300),  # of .731059 and .377541
        ("max", 1.0, 0.546449),  # .880797 / (.880797 + .731059)
        ("vote", 1.0, 0.5),
    ],
)
def test_by_hand(how: str, T: float, first: float) -> None:
    found = opinion(iter(TWO), how, T)  # type: ignore[arg-type]
    assert found[0].tolist() == pytest.approx([first, 1 - first], abs=1e-6)


def test_the_largest_opinion_is_that_of_distillation_on_noise_and_one_alone_its_own() -> None:
    teachers = list(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(opinion(teachers, "max", 2.0), max_ensemble(teachers, "sum", 2.0))
    z = torch.tensor([[0.3, -1.0, 2.0]])
    for how in ("logits", "mean", "max"):
        assert_close(opinion([z], how), F.softmax(z, 1))  # type: ignore[arg-type]
    assert opinion([z], "vote").tolist() == [[0, 0, 1]]


def test_the_mean_of_the_losses_has_the_gradient_of_the_mean_of_the_softmaxes() -> None:
    draw = torch.Generator().manual_seed(1)
    teachers = list(torch.randn(3, 5, 4, generator=draw))
    z = torch.randn(5, 4, generator=draw, requires_grad=True)
    losses = torch.stack([kl(y, z, 2.0) for y in teachers]).mean()
    ours = kl_from(opinion(teachers, "mean", 2.0), z, 2.0)
    assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (losses, ours)))
