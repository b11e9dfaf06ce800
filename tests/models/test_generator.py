"""The generator: sizes of FedKF, any image size, pixels normalised as the data are."""

import pytest
import torch

from common.models import count
from common.models.generator import Generator, redraw
from common.training import seeds
from tests.support.cost import macs


def small(shape: tuple[int, int, int] = (1, 8, 8), width: int = 8) -> Generator:
    channels = shape[0]
    with seeds.scope(0, "generator"):
        return Generator(10, shape, mean=[0.5] * channels, std=[0.25] * channels, width=width)


@pytest.mark.parametrize(
    ("latent", "channels", "expected"), [(100, 1, 1_049_985), (1000, 3, 8_423_939)]
)
def test_parameters_are_those_of_fedkf(latent: int, channels: int, expected: int) -> None:
    with torch.device("meta"):
        shape = (channels, 32, 32)
        generator = Generator(latent, shape, mean=[0.0] * channels, std=[1.0] * channels)
    assert count(generator) == expected


@pytest.mark.parametrize(
    ("shape", "expected"), [((3, 32, 32), 2_328_899), ((1, 28, 28), 1_834_305)]
)
def test_parameters_are_those_of_dense(shape: tuple[int, int, int], expected: int) -> None:
    with torch.device("meta"):
        norm = [0.0] * shape[0], [1.0] * shape[0]
        generator = Generator(256, shape, mean=norm[0], std=norm[1], eps=1e-5, bias=False)
    assert count(generator) == expected
    assert {m.eps for m in generator.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-5}


def test_a_generator_drawn_anew_is_that_of_its_stream_whatever_it_was() -> None:
    first, second = small(width=16), small(width=16)
    with torch.no_grad():
        for p in first.parameters():
            p.fill_(7.0)
    for generator in (first, second):
        redraw(generator, seeds.stream(0, "redraw"))
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)
    assert first.conv1.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert first.bn1.weight.mean().item() == pytest.approx(1.0, abs=0.02)
    assert 0 < first.bn1.weight.std().item() < 0.04
    for module in (first.fc, first.bn0, first.conv1, first.bn1, first.conv3):
        assert module.bias is not None and not module.bias.any()


def test_multiply_adds_are_those_of_fedkf_s_emnist_generator() -> None:
    with torch.device("meta"):
        generator = Generator(100, (1, 32, 32), mean=[0.0], std=[1.0])
    assert macs(generator, (100,)) / 1e6 == pytest.approx(114.7, rel=0.01)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (2, 5, 9)])
def test_images_have_the_size_asked_for(shape: tuple[int, int, int]) -> None:
    generator = small(shape)
    z = generator.latents(3, seeds.stream(0, "z"))
    assert z.shape == (3, 10)
    assert generator(z).shape == (3, *shape)


def test_images_are_pixels_normalised_by_the_data_s_mean_and_std() -> None:
    generator = small().eval()
    z = generator.latents(4, seeds.stream(0, "z"))
    pixels = generator.pixels(z)
    assert pixels.min() > 0 and pixels.max() < 1
    assert torch.allclose(generator(z), (pixels - 0.5) / 0.25)


def test_the_same_stream_gives_the_same_latents() -> None:
    generator = small()
    first = generator.latents(4, seeds.stream(0, "z", 1))
    assert torch.equal(first, generator.latents(4, seeds.stream(0, "z", 1)))
    assert not torch.equal(first, generator.latents(4, seeds.stream(0, "z", 2)))


def test_every_weight_learns() -> None:
    generator = small((3, 8, 8))
    generator(generator.latents(4, seeds.stream(0, "z"))).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in generator.parameters())


def test_its_inner_norms_have_dafl_s_eps() -> None:
    generator = small()
    assert (generator.bn0.eps, generator.bn1.eps, generator.bn2.eps) == (1e-5, 0.8, 0.8)
    assert generator.bn1.momentum == 0.1


def test_its_state_has_no_constants() -> None:
    assert not {"mean", "std"} & set(small().state_dict())


@pytest.mark.parametrize("shape", [(3, 33), (7,)])
def test_signals_and_tables_have_mean_0_and_variance_1_and_the_datas_units_before_that(
    shape: tuple[int, ...],
) -> None:
    channels = shape[0]
    with seeds.scope(0, "generator"):
        generator = Generator(10, shape, mean=[5.0] * channels, std=[2.0] * channels, width=8)
    z = generator.latents(64, seeds.stream(0, "z"))
    with torch.no_grad():
        x, raw = generator(z), generator.pixels(z)
    assert x.shape == (64, *shape)
    over = (0, *range(2, x.ndim))
    assert torch.allclose(x.mean(over), torch.zeros(channels), atol=1e-4)
    assert torch.allclose(x.var(over, correction=0), torch.ones(channels), atol=0.02)
    assert torch.allclose(raw, 2 * x + 5, atol=1e-4)
    redraw(generator, seeds.stream(0, "redraw"))
    assert generator(z).isfinite().all()
