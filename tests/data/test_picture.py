"""The bubbles say what the counts say."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from common.data.picture import bubbles


def test_the_area_of_a_bubble_is_proportional_to_its_count():
    figure = bubbles(np.array([[100, 0], [25, 50]]))
    dots = figure.axes[0].collections[0]
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    areas = dots.get_sizes()
    assert (areas / areas[0]).tolist() == pytest.approx([1.0, 0.25, 0.5])


def test_neighbouring_bubbles_do_not_touch_in_a_federation_of_ten():
    figure = bubbles(np.full((10, 10), 7))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    diameter = axes.collections[0].get_sizes()[0] ** 0.5 * figure.dpi / 72
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    assert diameter < min(x1 - x0, y1 - y0)


def test_the_key_shows_bubbles_of_the_same_scale():
    figure = bubbles(np.array([[1200, 3]]))
    axes = figure.axes[0]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["1,000", "250", "50"]
    assert axes.collections[1].get_sizes()[0] / axes.collections[0].get_sizes()[0] == (
        pytest.approx(1000 / 1200)
    )


def test_class_names_stand_at_their_rows():
    figure = bubbles(np.array([[1, 2]]), classes=("cat", "dog"))
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["cat", "dog"]


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (200, 10)])
def test_any_federation_can_be_drawn_and_written(tmp_path, shape):
    bubbles(np.ones(shape, dtype=int), tmp_path / "partition.svg")
    assert (tmp_path / "partition.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("counts", [np.zeros((0, 3)), np.zeros(3), np.array([[-1, 2]])])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(ValueError, match=r"must be \(clients, classes\)"):
        bubbles(counts)


@pytest.mark.full
def test_pyplot_is_not_imported():
    code = "import numpy, sys; from common.data.picture import bubbles; bubbles(numpy.ones((2, 2)))"
    check = f"{code}; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
