"""Batches: exact numbers, every sample once, and the same draws everywhere."""

import pytest
import torch

from common.data.batches import (
    AUGMENTS,
    Batches,
    check_augment,
    crop,
    cut_out,
    normalise,
    standardise,
)
from common.seeds import stream
from tests.support import halves

MEAN, STD = (0.5, 0.25, 0.0), (0.5, 0.25, 1.0)


def numbered(n: int, channels: int = 1, side: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """n images whose pixels all equal the image's number, which is also its label."""
    y = torch.arange(n)
    return y.to(torch.uint8).view(n, 1, 1, 1).repeat(1, channels, side, side), y


def batches(x, y, **options) -> Batches:
    channels = x.shape[1]
    settings = {"batch_size": 4, "mean": (0.0,) * channels, "std": (1.0,) * channels}
    settings |= {"generator": stream(1, "batches")} | options
    return Batches(x, y, **settings)


def augmented(x, augment, **options) -> torch.Tensor:
    """All images in one batch."""
    labels = torch.zeros(len(x), dtype=torch.int64)
    return next(iter(batches(x, labels, batch_size=len(x), augment=augment, **options)))[0]


def test_an_order_may_be_given_and_take_goes_round_as_often_as_it_must():
    fixed = batches(*numbered(9), order=torch.arange(9).flip(0), drop_last=True)
    order = [[8, 7, 6, 5], [4, 3, 2, 1]]
    assert [labels.tolist() for _ in range(2) for _, labels in fixed] == 2 * order
    taken = [y.tolist() for _, y in batches(*numbered(8)).take(5)]
    assert len(taken) == 5
    assert sorted(taken[0] + taken[1]) == sorted(taken[2] + taken[3]) == list(range(8))
    assert list(batches(*numbered(8)).take(0)) == []


def test_samples_are_divided_by_255_if_bytes_and_standardised():
    x = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    # (0 - .5)/.5 = -1;  (1 - .25)/.25 = 3;  (.2 - 0)/1 = .2
    assert normalise(x, MEAN, STD).flatten().tolist() == pytest.approx([-1.0, 3.0, 0.2])
    points = torch.tensor([[1.0, 3.0]]).view(1, 2, 1, 1)
    assert normalise(points, (0.5, 1.0), (0.5, 2.0)).flatten().tolist() == [1.0, 1.0]
    assert (x.flatten().tolist(), points.flatten().tolist()) == ([0, 255, 51], [1.0, 3.0])
    x = torch.tensor([[[[0, 51]], [[7, 7]]], [[[102, 153]], [[7, 7]]]], dtype=torch.uint8)
    # channel 0 holds 0, .2, .4, .6: mean .3, sample deviation sqrt(.2/3); channel 1 is constant
    out = standardise(x, (0.9, 0.9), (0.1, 0.1), "batch")
    expected = [(v - 0.3) / (0.2 / 3) ** 0.5 for v in (0.0, 0.2, 0.4, 0.6)]
    assert out[:, 0].flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert out[:, 1].abs().max() < 1e-6


def test_an_epoch_shows_every_sample_once_in_an_order_of_the_stream():
    seen = []
    for x, y in batches(*numbered(10)):
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        assert torch.allclose(x[:, 0, 0, 0] * 255, y.float())
        seen += y.tolist()
    assert sorted(seen) == list(range(10)) and seen != list(range(10))

    def epochs(source):
        return [[y.tolist() for _, y in source] for _ in range(2)]

    first = epochs(batches(*numbered(10)))
    assert first[0] != first[1]
    assert first == epochs(batches(*numbered(10)))
    assert first != epochs(batches(*numbered(10), generator=stream(2, "batches")))


def test_a_stream_decides_the_batches_and_its_order_does_not_depend_on_the_augmentation():
    x = torch.randint(0, 256, (9, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "x"))
    before, orders = torch.random.get_rng_state(), []
    for augment in AUGMENTS:
        runs = [list(batches(x, torch.arange(9), augment=augment)) for _ in range(2)]
        for (a, la), (b, lb) in zip(*runs, strict=True):
            assert torch.equal(a, b) and torch.equal(la, lb), augment
        orders.append([labels.tolist() for _, labels in runs[0]])
    assert all(order == orders[0] for order in orders)
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator is left alone"


@pytest.mark.parametrize(
    ("n", "options", "lengths"),
    [
        (9, {}, [4, 4]),  # the last batch would be a single sample
        (10, {}, [4, 4, 2]),
        (10, {"drop_last": True}, [4, 4]),
        (8, {"drop_last": True}, [4, 4]),
        (1, {}, [1]),  # there is nothing else
        (3, {"drop_last": True}, [3]),
        (3, {"batch_size": 1}, [1, 1, 1]),
    ],
)
def test_lengths_of_the_batches(n, options, lengths):
    source = batches(*numbered(n), **options)
    assert [len(y) for _, y in source] == lengths
    assert len(source) == len(lengths) and source.samples == n


@pytest.mark.parametrize(
    ("rows", "columns", "border", "cropped"),
    [
        # padded by one: 0 0 0 0 / 0 1 2 0 / 0 3 4 0 / 0 0 0 0; the window at row 0, column 1
        ([0, 1], [1, 2], 1, [[0, 0], [1, 2]]),
        ([0, 1], [1, 0], 0, [[2, 1], [4, 3]]),  # descending columns: a flip
    ],
)
def test_crop_moves_the_window_over_black_borders(rows, columns, border, cropped):
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 1, 2, 2)
    out = crop(image, torch.tensor([rows]), torch.tensor([columns]), border)
    assert out.view(2, 2).tolist() == cropped


def test_flip_mirrors_about_half_of_the_images_and_changes_nothing_else():
    x = torch.arange(12, dtype=torch.uint8).view(1, 1, 3, 4).repeat(400, 1, 1, 1)
    out = (augmented(x, "flip") * 255).round().to(torch.uint8)
    same = (out == x).flatten(1).all(1)
    mirrored = (out == x.flip(-1)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 160 < int(mirrored.sum()) < 240


def test_crop_flip_shifts_by_four_pixels_at_most_and_every_image_differently():
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 255
    out = augmented(x, "crop-flip")[:, 0]
    assert out.flatten(1).sum(1).tolist() == [1.0] * 4000  # the centre is never cut off
    assert bool((out.sum(0) > 10).all())
    grey = torch.randint(1, 256, (16, 1, 32, 32), dtype=torch.uint8, generator=stream(0, "x"))
    out = augmented(grey[:1].repeat(16, 3, 1, 1), "crop-flip")
    assert torch.equal(out[:, 0], out[:, 1]) and torch.equal(out[:, 0], out[:, 2])
    assert len({tuple(image.flatten().tolist()) for image in out[:, 0]}) > 8
    images = augmented(torch.full((64, 1, 6, 6), 0.75), "crop-flip")
    assert sorted(set(images.flatten().tolist())) == [0.0, 0.75]
    with pytest.raises(ValueError, match="floats take 'none'"):
        check_augment("flip", torch.zeros(4, 2, 1, 1))


def test_cutout_zeroes_a_square_of_the_mean_colour_and_clips_it_at_the_border():
    x = torch.ones(2, 1, 6, 6)
    cut_out(x, torch.tensor([[0, 5], [3, 3]]), 4)
    # centre (0, 5): rows -2..1, columns 3..6, of which 2 x 3 lie inside; centre (3, 3): 4 x 4
    assert (x == 0).flatten(1).sum(1).tolist() == [6, 16]
    assert x[0, 0, :2, 3:].abs().sum() == 0 and x[1, 0, 1:5, 1:5].abs().sum() == 0
    x = torch.full((8, 3, 32, 32), 200, dtype=torch.uint8)
    holes = (augmented(x, "cutout-only", mean=MEAN) == 0).all(1).flatten(1).sum(1)
    assert bool((holes >= 64).all()) and bool((holes <= 256).all())


def test_scoring_keeps_the_order_and_leaves_nothing_out():
    x, y = numbered(9)
    task = halves.task(score__batch_size=4)
    parts = list(task.in_order(x, y))
    assert [len(labels) for _, labels in parts] == [4, 4, 1]
    assert torch.cat([labels for _, labels in parts]).tolist() == list(range(9))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("augment", AUGMENTS)
def test_the_gpu_sees_the_same_batches(augment):
    x = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "x"))
    there = list(batches(x, torch.arange(50), augment=augment, device="cuda"))
    for (a, la), (b, lb) in zip(batches(x, torch.arange(50), augment=augment), there, strict=True):
        assert torch.equal(la, lb.cpu()) and torch.allclose(a, b.cpu(), atol=1e-6)
