"""Noise images, and distillation on them."""

import math
from itertools import islice

import pytest
import torch
from torch import Tensor

from common import seeds
from common.data import noise
from common.losses.distillation import kl
from common.settings.options import NoiseTraining
from server_app.distillation.noise import combined, weighted

every_kind = pytest.mark.parametrize("kind", sorted(noise.NOISES))
A = torch.tensor([[0.5, 0.5]]).log()
B = torch.tensor([[0.8, 0.2]]).log()


def drawn(
    kind: str, n: int = 64, shape: tuple[int, int, int] = (3, 16, 16), seed: int = 0
) -> Tensor:
    return next(noise.NOISES[kind](n, shape, seeds.stream(seed, "noise")))


@every_kind
def test_noise_has_mean_0_variance_1_and_the_shape_of_the_inputs(kind: str) -> None:
    z = drawn(kind)
    assert z.shape == (64, 3, 16, 16) and z.dtype == torch.float32
    assert z.mean().abs() < 0.02 and z.var().sub(1).abs() < 0.03
    for shape in ((2, 1, 1), (1, 8, 8), (1, 28, 28), (3, 5, 9)):
        z = drawn(kind, 4, shape)
        assert z.shape == (4, *shape) and z.isfinite().all()


@every_kind
def test_noise_comes_from_its_generator_alone_and_every_batch_is_another(kind: str) -> None:
    before = torch.random.get_rng_state()
    z = drawn(kind)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(z, drawn(kind)) and not torch.equal(z, drawn(kind, seed=1))
    zs = [z for (z,) in noise.batches(kind, 3, 4, (1, 8, 8), seeds.stream(0, "noise"))]
    assert len(zs) == 3
    assert not torch.equal(zs[0], zs[1]) and not torch.equal(zs[1], zs[2])


def test_gaussian_noise_is_one_draw_of_randn_a_batch() -> None:
    generator = seeds.stream(0, "noise")
    expected = [torch.randn((4, 1, 8, 8), generator=generator) for _ in range(2)]
    got = list(islice(noise.NOISES["gaussian"](4, (1, 8, 8), seeds.stream(0, "noise")), 2))
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


def test_uniform_noise_stays_within_root_3() -> None:
    z = drawn("uniform")
    assert 1.7 < z.abs().max() <= 3**0.5


def test_a_leaf_s_radius_has_density_proportional_to_its_third_negative_power() -> None:
    u = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    r = noise.radii(u)
    assert r[[0, -1]].tolist() == pytest.approx([noise.SMALLEST, noise.LARGEST])
    # P(r ≤ 2a) on [a, 8a] is (1 − 1/4) / (1 − 1/64) = 48/63
    assert (r <= 2 * noise.SMALLEST).double().mean().item() == pytest.approx(48 / 63, abs=1e-3)


def test_dead_leaves_are_patches_of_one_colour() -> None:
    z = drawn("dead_leaves", 16, (3, 32, 32))
    same = (z[..., 1:] == z[..., :-1]).all(1).double().mean()
    assert same > 0.7
    colours = [len(image.flatten(1).T.unique(dim=0)) for image in z]
    assert min(colours) > 10 and max(colours) <= noise.LEAVES + 1


def test_the_leaf_laid_first_lies_on_top() -> None:
    # 5 × 4 pixels: a circle of radius 1.5 around (2, 2), whose corners at distance √2.5 are out,
    # in front of a square of half-side 1 around (3, 2)
    across, request = torch.arange(5) + 0.5, torch.arange(4) + 0.5
    dx2 = torch.stack([(across - 2).square(), (across - 3).square()])[None]
    dy2 = torch.stack([(request - 2).square(), (request - 2).square()])[None]
    front = torch.full((1, 4, 5), 9, dtype=torch.uint8)
    depth = torch.arange(2, dtype=torch.uint8)
    noise._paint(front, depth, dx2, dy2, torch.tensor([[2.25, 1.0]]))
    assert front[0].tolist() == [[9, 9, 9, 9, 9], [9, 0, 0, 1, 9], [9, 0, 0, 1, 9], [9, 9, 9, 9, 9]]


def test_a_stylegan_s_neighbouring_pixels_are_alike_and_its_images_differ() -> None:
    z = drawn("stylegan", 32, (3, 32, 32))
    near = (z[..., 1:] * z[..., :-1]).mean()
    far = (z[1:] * z[:-1]).mean()
    assert near > 0.5 and far < near and not torch.equal(z[0], z[1])


def test_a_modulated_convolution_has_weights_of_norm_1() -> None:
    # x = 1 and one weight only, in the middle: 3 s / ‖3 s‖ = 1 for every scale s > 0
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 1, 1] = 3.0
    y = noise.modulated(torch.ones(2, 1, 4, 4), weight, torch.tensor([[0.5], [7.0]]))
    assert torch.allclose(y, torch.ones(2, 1, 4, 4), atol=1e-6)
    constant = torch.full((3, 1, 2, 2), 5.0)
    assert torch.equal(noise.standard(constant), torch.zeros(3, 1, 2, 2))


def test_every_teacher_is_heard_with_its_weight_or_the_largest_opinion_alone() -> None:
    # KL((.8, .2) ‖ (.5, .5)) = .8 log 1.6 + .2 log .4, and KL of equals is 0
    expected = 0.25 * (0.8 * math.log(1.6) + 0.2 * math.log(0.4))
    loss = weighted(kl, [0.75, 0.25], 1.0)([A, B], torch.zeros(1, 2))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    # max is (.8, .5), by its sum (8/13, 5/13), against (.5, .5)
    p, q = 8 / 13, 5 / 13
    o = NoiseTraining(max_norm="sum", temperature=1.0)
    loss = combined(o, 2, "ensemble")([A, B], torch.zeros(1, 2))
    assert loss.item() == pytest.approx(p * math.log(2 * p) + q * math.log(2 * q), rel=1e-4)
