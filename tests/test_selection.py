"""Which clients a round asks: by tags, by weights, and by a rule of the user's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.journal import Entry
from common.parse import parse
from deploy.run.loopback import Loopback
from server_app.selection import Candidate, Selection, by_loss, by_samples, uniform
from server_app.stopped import Stopped
from tests.support.halves import info
from tests.support.own_modules import importing_from
from tests.support.tiny import flat, play

DRAWS = 2000
RULES = """
def fewest(candidates, size, rng):
    asked = {c.k: len(c.metrics) for c in candidates}
    return sorted(asked, key=lambda k: (asked[k], -k))[:size]

def wrong(candidates, size, rng):
    return [7]
"""


def share(rule: Any, candidates: list[Candidate], k: int) -> float:
    """Return how often a rule selects client k if it selects one client."""
    rng = np.random.default_rng(0)
    return sum(rule(candidates, 1, rng) == [k] for _ in range(DRAWS)) / DRAWS


def test_weights_give_probabilities() -> None:
    losses: list[Any] = [{1: {"loss": 9.0}, 3: {"loss": 1.0}}, {2: {"loss": 2.0}}, {}]
    three = [Candidate(k, 10 * (k + 1), "mlp", (), losses[k]) for k in range(3)]
    assert share(uniform, three, 2) == pytest.approx(1 / 3, abs=0.04)
    assert share(by_samples, three, 2) == pytest.approx(30 / 60, abs=0.04)
    # the newest losses are 1 and 2, and client 2 has their mean, 1.5
    assert share(by_loss, three, 0) == pytest.approx(1 / 4.5, abs=0.04)
    assert share(by_loss, three, 2) == pytest.approx(1.5 / 4.5, abs=0.04)


def test_tags_select_the_clients_that_have_all_of_them(tmp_path: Path) -> None:
    settings = {"rounds": 2, "node__0__tags": "gpu,north", "select__tags": "north,gpu"}
    config = flat(tmp_path, clients=3, **settings)
    own: dict[int, Any] = {2: {"tags": "north, gpu, old"}}
    run = play(config, Loopback(3, config, workers=0, node_configs=own))
    assert [entry["selected"] for entry in run.journal[1:]] == [[0, 2], [0, 2]]
    tags = [client.get("tags") for client in run.journal[0]["clients"]]
    assert tags == [["gpu", "north"], None, ["north", "gpu", "old"]]


def test_a_tag_that_nobody_has_is_one_line(tmp_path: Path) -> None:
    line = "select.tags: no client has the tag 'tpu'; the clients' tags are gpu"
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path, rounds=1, node__0__tags="gpu", select__tags="gpu,tpu"))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"select__by": "losses"}, "select.by = 'losses' is unknown: .*uniform, samples, loss"),
        ({"node__0__tags": ","}, "node.0.tags"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line) as error:
        Selection(parse(flat(tmp_path, **settings)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("by", "kept"),
    [("uniform", {}), ("samples", {}), ("loss", {0: {3: {"loss": 1.0}}, 1: {2: {"loss": 4.0}}})],
)
def test_a_rule_keeps_only_the_metrics_that_it_reads(by: str, kept: Any, tmp_path: Path) -> None:
    selection = Selection(parse(flat(tmp_path, select__by=by)))
    selection.add(Entry(round=1, client_metrics={0: {"loss": 2.0, "more": 1.0}, 1: {"loss": 3.0}}))
    selection.add(Entry(round=2, client_metrics={1: {"loss": 4.0}}))
    selection.add(Entry(round=3, client_metrics={0: {"loss": 1.0}, 1: {"more": 1.0}}))
    assert selection.metrics == kept


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a run with a module of rules."""
    importing_from(tmp_path, monkeypatch)
    (tmp_path / "rules_of_mine.py").write_text(RULES)
    return {"plugins": str(tmp_path), "per_round": 1, "clients": 3}


def test_a_plug_in_sees_metrics_of_earlier_rounds(plugins: dict[str, Any], tmp_path: Path) -> None:
    rule = {"select__by": "rules_of_mine:fewest", **plugins}
    whole = play(flat(tmp_path / "whole", rounds=4, **rule))
    assert [entry["selected"] for entry in whole.journal[1:]] == [[2], [1], [0], [2]]
    play(flat(tmp_path / "part", rounds=2, **rule))
    resumed = play(flat(tmp_path / "part", rounds=4, resume=True, **rule))
    assert resumed.weights == whole.weights, "the metrics come from the journal"


def test_a_plug_in_selects_only_from_the_clients(plugins: dict[str, Any], tmp_path: Path) -> None:
    line = r"select.by = 'rules_of_mine:wrong' selected \[7\] of the clients \[0, 1, 2\]"
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path / "out", rounds=1, select__by="rules_of_mine:wrong", **plugins))


def test_the_uniform_rule_draws_as_before(tmp_path: Path) -> None:
    selection = Selection(parse(flat(tmp_path, per_round=2)))
    selection.add(Entry(round=1, client_metrics={0: {"loss": 1.0}}))
    infos = [info(k=k) for k in (0, 2, 3)]
    for seed in range(5):
        chosen = np.random.default_rng(seed).choice(3, size=2, replace=False)
        expected = {(0, 2, 3)[i] for i in chosen}
        assert selection.draw(infos, np.random.default_rng(seed), 2) == expected
