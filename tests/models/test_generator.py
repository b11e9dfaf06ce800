"""The generator: sizes of FedKF, any image size, pixels normalised as the data are."""

import pytest
import torch

from common import seeds
from common.models import count
from common.models.generator import Generator, redraw
from tests.support.cost import macs


def small(shape: tuple[int, int, int] = (1, 8, 8), width: int = 8) -> Generator:
    channels = shape[0]
    with seeds.scope(0, "generator"):
        return Generator(10, shape, mean=[0.5] * channels, std=[0.25] * channels, width=width)


DENSE = {"eps": 1e-5, "bias": False}


@pytest.mark.parametrize(
    ("latent", "shape", "more", "expected"),
    [
        (100, (1, 32, 32), {}, 1_049_985),
        (1000, (3, 32, 32), {}, 8_423_939),
        (256, (3, 32, 32), DENSE, 2_328_899),
        (256, (1, 28, 28), DENSE, 1_834_305),
    ],
)
def test_parameters_are_those_of_fedkf_and_dense(latent, shape, more, expected) -> None:
    with torch.device("meta"):
        norm = [0.0] * shape[0], [1.0] * shape[0]
        generator = Generator(latent, shape, mean=norm[0], std=norm[1], **more)
    assert count(generator) == expected
    norms = [m for m in generator.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert [m.eps for m in norms] == ([1e-5] * 3 if more else [1e-5, 0.8, 0.8])  # DAFL's
    assert norms[1].momentum == 0.1
    assert not {"mean", "std"} & set(generator.state_dict()), "its state has no constants"


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


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 64, 64), (2, 5, 9)])
def test_images_have_the_size_asked_for_and_every_weight_learns(shape) -> None:
    generator = small(shape)
    z = generator.latents(3, seeds.stream(0, "z"))
    images = generator(z)
    assert z.shape == (3, 10) and images.shape == (3, *shape)
    images.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in generator.parameters())


def test_pixels_are_normalised_by_the_data_and_latents_follow_their_stream() -> None:
    generator = small().eval()
    z = generator.latents(4, seeds.stream(0, "z"))
    pixels = generator.pixels(z)
    assert pixels.min() > 0 and pixels.max() < 1
    assert torch.allclose(generator(z), (pixels - 0.5) / 0.25)
    generator = small()
    first = generator.latents(4, seeds.stream(0, "z", 1))
    assert torch.equal(first, generator.latents(4, seeds.stream(0, "z", 1)))
    assert not torch.equal(first, generator.latents(4, seeds.stream(0, "z", 2)))


@pytest.mark.parametrize("shape", [(3, 33), (7,)])
def test_signals_and_tables_have_mean_0_and_variance_1_and_the_datas_units_before_that(shape):
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
