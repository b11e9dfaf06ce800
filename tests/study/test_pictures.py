"""The pictures: decision regions, samples of generators, and their commands."""

from pathlib import Path

import numpy as np
import pytest
import torch

from common.data.embedded import points
from common.models.classifier import Classifier
from common.parse import to_toml
from deploy.report.style import frame, save
from deploy.study import pictures
from deploy.study.analyse import analyse
from tests.support.commandline import typed
from tests.support.tiny import flat, play, under

POINTS = {"method": "fedorion", "clients": 3, "fleet": "points-mlp-1,points-mlp-2,points-mlp-3"}
POINTS |= under("data", name="points", samples=0, test_samples=0)


class HalfPlanes(Classifier):
    """Class 0 where the first feature is below 0, else 1 where the second is below 0, else 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x[:, 0], x[:, 1]
        right = (first >= 0).float()
        return torch.stack([1 - right, right * (second < 0), right * (second >= 0)], dim=1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError


def test_regions_are_laid_out_as_the_plane_is() -> None:
    grid = pictures.decisions(HalfPlanes(), points(), 1.0, side=4)
    assert grid.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 2, 2]]


def test_a_run_on_points_has_a_panel_for_each_network_before_and_after(tmp_path: Path) -> None:
    settings = flat(tmp_path, **POINTS, rounds=3)
    play(settings)
    (tmp_path / "config.toml").write_text(to_toml(settings))
    figure = pictures.regions(tmp_path)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    clients = [f"client {k}: points-mlp-{k + 1}" for k in range(3)]
    assert titles == [*clients, "server: points-mlp-1"]
    assert len(figure.axes) == 8
    before, after = (np.asarray(figure.axes[i].images[0].get_array()) for i in (0, 4))
    assert (before != after).any()
    drawn = sum(len(figure.axes[i].collections[0].get_offsets()) for i in range(3))
    assert 400 <= drawn <= 600 == len(figure.axes[3].collections[0].get_offsets())


def test_regions_are_refused_for_what_has_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished run"):
        pictures.regions(tmp_path)
    settings = flat(tmp_path / "toy", rounds=1)
    play(settings)
    (tmp_path / "toy/config.toml").write_text(to_toml(settings))
    with pytest.raises(ValueError, match="is a run on images 1×8×8, not on points"):
        pictures.regions(tmp_path / "toy")


def test_a_run_on_numbers_has_no_pictures_of_classes(tmp_path: Path) -> None:
    data = under("data", name="diabetes", partition="iid", samples=0, test_samples=0)
    settings = flat(tmp_path / "run", method="fedavg", fleet="table-mlp2", rounds=1, **data)
    play(settings)
    (tmp_path / "run/config.toml").write_text(to_toml(settings))
    line = "run is a run on number; this command needs one class for each sample$"
    with pytest.raises(ValueError, match=line):
        pictures.regions(tmp_path / "run")
    with pytest.raises(ValueError, match=line):
        analyse([tmp_path / "run"], tmp_path / "to", clients=2, label=0, images=40, workers=0)


@pytest.mark.parametrize(
    "words", ["leaderboard --picture", "study regions F --out", "study samples F --out"]
)
def test_the_path_of_a_picture_is_checked_before_the_work(words: str) -> None:
    option = words.split()[-1]
    for path, line in (
        ("x.bmp", f"{option} x.bmp: a picture should end in .pdf, .png or .svg"),
        (f"{__file__}/x.png", f"{option} {__file__} is not allowed; {__file__} is not a folder"),
    ):
        done = typed(*words.split(), path)
        assert done.returncode != 0 and done.stdout == ""
        assert done.stderr == f"error: {line}\n"


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_a_picture_has_the_format_of_its_suffix(suffix: str, tmp_path: Path) -> None:
    start = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    path = save(frame((1.0, 1.0))[0], tmp_path / "new" / f"x.{suffix}")
    assert path.read_bytes().startswith(start)
