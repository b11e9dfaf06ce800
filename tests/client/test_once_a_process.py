"""What a process of many clients does once; nothing of one client reaches another by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common import models, seeds, task
from common.parse import defaults, parse, parse_once
from common.task import evaluate
from tests.support import halves
from tests.support.tiny import flat, play


def test_a_run_config_is_parsed_once_and_types_count() -> None:
    one = {**defaults(), "score.target": 1.0, "rounds": 3}
    assert parse_once(dict(one)) is parse_once(dict(one))
    assert parse_once(one) == parse(one)
    other = parse_once({**one, "rounds": 4})
    assert other.run.rounds == 4 and parse_once(one).run.rounds == 3
    with pytest.raises(ValueError, match="rounds = true"):
        parse_once({**one, "rounds": True})


def test_seeding_gives_what_torch_gives() -> None:
    torch.manual_seed(seeds.key(3, "a"))
    expected = torch.rand(5)
    with seeds.scope(3, "a"):
        assert torch.equal(torch.rand(5), expected)


def test_parameters_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [models.parameters("cnn2@0.37", (1, 8, 8), 7)]
    monkeypatch.setattr(models, "build", None)
    counts.append(models.parameters("cnn2@0.37", (1, 8, 8), 7))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("layout", ["auto", "contiguous"])
def test_a_network_to_score_is_built_once_and_holds_the_weights_at_hand(layout: str) -> None:
    learnt = halves.task(train__memory_format=layout)
    x = torch.randint(256, (9, *learnt.shape), dtype=torch.uint8)
    y = torch.arange(9) % learnt.num_classes
    nets = [learnt.build("cnn2@0.5", name=(str(i),)) for i in range(2)]
    for net in nets:  # running statistics too
        net(torch.rand(4, *learnt.shape))
    expected = [evaluate(net, x, y, learnt) for net in nets]
    task._shown.cache_clear()
    told = []
    for net in (*nets, *nets):
        shown = learnt.shown("cnn2@0.5", net.state_dict())
        told.append(evaluate(shown, x, y, learnt))
        assert all(torch.equal(v, shown.state_dict()[k]) for k, v in net.state_dict().items())
    assert told == [*expected, *expected]
    assert task._shown.cache_info().misses == 1


@pytest.mark.full
def test_a_sample_of_the_clients_scores_and_the_weights_are_the_same(tmp_path: Path) -> None:
    given = {"clients": 4, "rounds": 2, "score__clients_every": 1}
    every = play(flat(tmp_path / "every", **given))
    few = play(flat(tmp_path / "few", **given, score__clients=2))
    assert few.weights == every.weights
    ks = [[score["k"] for score in entry["scores"]] for entry in few.journal[1:]]
    assert len(ks[0]) == 2 and ks[0] == ks[1] == sorted(ks[0])
    told = {score["k"]: score for score in every.journal[1]["scores"]}
    assert few.journal[1]["scores"] == [told[k] for k in ks[0]]
