"""`fedmosaic status` and `fedmosaic remove`."""

import json
import re
import time
from pathlib import Path

import pytest

from common.settings.version import code_version
from server_app.storage import removals
from server_app.storage.lock import hold
from server_app.storage.status_file import NAME
from tests.support.commandline import typed
from tests.support.tiny import Run, listed

EVENTS = """
event = [
  {round = 2, client = 1, kind = "left", cause = "moved"},
  {round = 2, client = 2, kind = "missed"},
]
"""


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    """The folder of a run that client 1 leaves and client 2 misses once."""
    more = {"membership": listed(tmp_path, EVENTS), "node__1__tags": "gpu,north"}
    more |= {"node__1__name": "North Hospital"}
    return run(method="fedavg", rounds=3, min_replies=0.5, **more).folder


def test_status_shows_the_run_and_every_client(folder: Path) -> None:
    done = typed("status", folder, "--json")
    status = json.loads(done.stdout)
    assert (status["state"], status["round"], status["rounds"]) == ("completed", 3, 3)
    named = ("state", "last_reply", "answered", "missed")
    assert [tuple(client[name] for name in named) for client in status["clients"]] == [
        *(("member", 3, 3, 0), ("left", 1, 1, 0), ("member", 3, 2, 1), ("member", 3, 3, 0))
    ]
    first, second = status["clients"][:2]
    assert (first["samples"], first["tags"], first["node"]) == (24, [], "1")
    assert (second["tags"], second["node"]) == (["gpu", "north"], "North Hospital")
    assert second["version"] == code_version() and 0 < second["last_seen"] <= time.time()
    shown = typed("status", folder).stdout
    assert "round 3 of 3" in shown and "3 of 4 clients take part" in shown and "left" in shown
    assert "North Hospital" in shown and "gpu,north" in shown and " ago" in shown


def test_the_phase_of_a_run_that_is_going_on_is_shown(folder: Path) -> None:
    (folder / NAME).write_text('{"round": 4, "phase": "clients"}')
    assert json.loads(typed("status", folder, "--json").stdout)["phase"] == ""
    with hold(folder):
        assert json.loads(typed("status", folder, "--json").stdout)["phase"] == "clients of round 4"
        assert "running; round 3 of 3; clients of round 4; " in typed("status", folder).stdout


@pytest.mark.full
def test_the_report_shows_the_events(folder: Path) -> None:
    assert typed("report", folder, "--out", folder / "report.html").returncode == 0
    page = (folder / "report.html").read_text()
    assert "Membership" in page and "moved" in page


def test_a_removed_client_may_return_and_a_wrong_one_is_one_line(folder: Path) -> None:
    for words, line in (
        ((4,), "client 4 is unknown: the run in .* has clients 0 to 3"),
        ((2, "--undo"), "client 2 is not removed from the run in"),
    ):
        done = typed("remove", folder, *words)
        (error,) = done.stderr.splitlines()
        assert done.returncode == 1 and re.search(line, error)
    assert "client 3 leaves before the next round" in typed("remove", folder, 3).stdout
    assert removals.read(folder) == {3}
    assert "may return" in typed("remove", folder, 3, "--undo").stdout
    assert removals.read(folder) == frozenset()
    (folder / removals.NAME).write_text("1 two\n")
    with pytest.raises(ValueError, match=r"removed\.txt: 'two' is no client number"):
        removals.read(folder)
