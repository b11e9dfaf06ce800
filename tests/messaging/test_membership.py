"""Clients join, leave and return during a run, by a list of events or as nodes come and go."""

from pathlib import Path

import pytest

from tests.support.battery import METHODS, config, tiers
from tests.support.tiny import TinyRun, play

EVENTS = """
event = [
  {round = 2, client = 1, kind = "left"},
  {round = 3, client = 3, kind = "joined"},
  {round = 4, client = 1, kind = "returned"},
  {round = 5, client = 0, kind = "replaced"},
]
"""


def listed(folder: Path, text: str) -> str:
    """Write a list of events and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.toml"
    path.write_text(text)
    return str(path)


def changes(run: TinyRun) -> list[tuple[int, int, str]]:
    """Return round, client and kind of the journal's events."""
    return [(e["round"], c["k"], c["kind"]) for e in run.journal for c in e.get("events", [])]


# A list of events.


@pytest.mark.parametrize("method", tiers(METHODS))
def test_every_method_copes_with_clients_that_come_and_go(method: str, tmp_path: Path) -> None:
    settings = {"membership": listed(tmp_path, EVENTS), "rounds": 5, "clients": 4}
    run = play(config(method, tmp_path / "run", **settings))
    assert changes(run) == [
        (2, 1, "left"),
        (3, 3, "joined"),
        (4, 1, "returned"),
        (5, 0, "replaced"),
    ]
    assert [entry["selected"] for entry in run.journal[1:]] == [
        *([0, 1, 2], [0, 2], [0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3])
    ]
    assert not [failure for entry in run.journal for failure in entry["failures"]]
    assert run.summary["status"] == "completed"
    assert len(run.journal[-1]["scores"]) == 4


@pytest.mark.parametrize("method", tiers(METHODS))
def test_events_that_change_nothing_change_no_bit(method: str, tmp_path: Path) -> None:
    rounds = {"rounds": 2, "clients": 4}
    text = 'event = [{round = 9, client = 1, kind = "left"}]'
    plain = play(config(method, tmp_path / "plain", **rounds))
    settings = {"membership": listed(tmp_path, text), "min_clients": 2, **rounds}
    replayed = play(config(method, tmp_path / "run", **settings))
    assert replayed.timeless == plain.timeless
    assert replayed.summary["weights_sha256"] == plain.summary["weights_sha256"]
