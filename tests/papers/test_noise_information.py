"""What noise tells of a teacher: by hand, and the command."""

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from tests.papers import noise
from tests.papers.__main__ import app
from tests.papers.noise import Measurement, correlations, mutual_information, table
from tests.support.tiny import flat

pytestmark = pytest.mark.docs

SURE = 1000.0  #: a logit beside zeros that makes its class certain


def test_information_by_hand() -> None:
    sure = torch.eye(4) * SURE
    assert mutual_information([sure]) == pytest.approx(math.log(4)), "each z another class"
    assert mutual_information([sure[:1], sure[:1]]) == 0, "always the same class"
    assert mutual_information([torch.zeros(5, 4)]) == 0, "never sure of anything"
    # two inputs, (3/4, 1/4) and (1/4, 3/4): log 2 − H(1/4) = 0.693147 − 0.562335
    p = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    assert mutual_information([p.log()]) == pytest.approx(0.130812, abs=1e-6)


def found(seed: int, information: float, student: float, kind: str = "gaussian") -> Measurement:
    return Measurement(seed, "cnn2", kind, "batch", 0.9, information, student)


def test_correlation_is_of_ranks_and_seed_by_seed() -> None:
    rising = [found(1, i, s) for i, s in ((0.1, 0.2), (0.2, 0.3), (5.0, 0.4))]
    falling = [found(2, i, s) for i, s in ((0.1, 0.9), (0.2, 0.5), (0.3, 0.1))]
    assert correlations(rising + falling) == pytest.approx([1.0, -1.0])


def test_the_table_has_means_over_the_seeds_and_their_interval() -> None:
    seeds = [
        found(seed, 0.1 * seed + more, 0.5 + 0.1 * seed + more, kind)
        for seed in (1, 2)
        for kind, more in (("gaussian", 0.0), ("uniform", 0.2))
    ]
    first = table(seeds).records()[0]
    assert first["teacher, %"] == "90.0 ± 0.0"
    # two values 60 and 70: t(0.975, 1) = 12.706, s = 7.071, half = 12.706 · 7.071 / √2
    assert first["student, %"] == "65.0 ± 63.5"
    # in each seed the second kind has more of both
    (note,) = table(seeds).notes
    assert "all: 1.00 ± 0.00; batch alone: 1.00 ± 0.00." in note and "running" not in note


def test_the_command_writes_every_combination(tmp_path: Path) -> None:
    settings = (
        "fleet=mlp@0.25,lenet5@0.5 global-model=mlp@0.25 data.name=digits data.image-size=0 "
        "data.samples=200 data.test-samples=50 train.epochs=1 noise.batches=2 noise.batch-size=16"
    )
    chosen = [word for setting in settings.split() for word in ("-s", setting)]

    def go(*more: str) -> Result:
        command = ["figures", "information", *chosen, *more, "--seeds", "1", "--out", str(tmp_path)]
        return CliRunner().invoke(app, command)

    result = go()
    assert result.exit_code == 0, result.output
    kept = tmp_path / "information.json"
    whole = json.loads(kept.read_text())
    told = whole["found"]
    assert whole["experiment"]["noise.batches"] == 2
    assert "train.clip" not in whole["experiment"], "a default, which a later version may not have"
    # the perceptron has BatchNorm and is asked both ways, LeNet-5 has none
    assert len(told) == 4 * 2 + 4
    assert all(0 <= one["information"] <= math.log(10) for one in told)
    assert (tmp_path / "information.md").exists() and (tmp_path / "information.png").exists()
    # cut off after five, it measures the other seven, and finds the same
    kept.write_text(json.dumps({**whole, "found": told[:5]}))
    again = go()
    assert json.loads(kept.read_text()) == whole, again.output
    assert again.output.count(" nats, student ") == 7
    other = go("-s", "noise.batches=3")
    assert "another noise.batches: give another --out" in str(other.exception)
    assert json.loads(kept.read_text()) == whole
    kept.write_text("[]")
    assert "is no record of this study" in str(go().exception)


def test_every_kind_of_noise_is_drawn_eight_times() -> None:
    figure = noise.draw_kinds()
    assert len(figure.axes) == 4 * 8
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels == ["gaussian", "uniform", "dead_leaves", "stylegan"]


def test_noise_is_timed_as_a_part_of_the_step_that_it_feeds(tmp_path: Path) -> None:
    times = noise.times(flat(tmp_path), batches=2)
    assert [time.kind for time in times] == ["gaussian", "uniform", "dead_leaves", "stylegan"]
    assert all(time.noise > 0 and 0 < time.share <= 1 for time in times)
    assert noise.Time("gaussian", 1.0, 4.0).share == 0.25
