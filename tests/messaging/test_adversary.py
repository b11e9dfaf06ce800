"""Well-formed lies, method by method: through checks, step and checkpoint, and on after resuming.

All of it is ``make hostile``, which records what became of each lie for the table in the docs. What
runs everywhere is one method of each kind of answer against the lie that broke runs.
"""

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from server_app.stopped import Stopped
from tests.support import adversary
from tests.support.battery import METHODS, tiers
from tests.support.tiny import TinyRun, play

KINDS = ("fedavg", "fedin", "dl-sh")  #: weights; features beside them; predictions
COMPLETED = "completed"


def attempted(method: str, lie: type[adversary.Lying], out: Path) -> dict[str, Any]:
    """What became of the lie: ``refused``, ``used``, ``undone`` or ``stopped``; and the line."""
    flat = adversary.settings(method, out)
    try:
        run = play(flat, lie)
    except Stopped as stopped:
        line = str(stopped)
        assert "\n" not in line and line.isprintable()
        return {"outcome": "stopped", "line": line}
    assert run.summary["status"] == COMPLETED
    failures = [f for entry in run.journal for f in entry["failures"]]
    blamed = {failure["k"] for failure in failures}
    assert blamed <= {adversary.LIAR}, f"honest clients are blamed: {failures}"
    if entry := next((e for e in run.journal if e.get("undone")), None):
        return {"outcome": "undone", "line": entry["undone"][0]["why"]}
    said = [failure["reason"] for failure in failures]
    replied = run.journal[adversary.ROUND]["replied"]
    assert (adversary.LIAR in replied) == (not said), (replied, failures)
    return {"outcome": "refused" if said else "used", "line": said[0] if said else ""}


def goes_on(method: str, out: Path) -> TinyRun:
    """The run resumed with everybody honest, one round longer than before."""
    more = {"rounds": adversary.ROUNDS + 1, "resume": True}
    resumed = play({**adversary.settings(method, out), **more})
    assert resumed.summary["status"] == COMPLETED
    assert resumed.journal[-1]["round"] == adversary.ROUNDS + 1
    if (model := out / "model.safetensors").exists():  # not every method has one
        assert all(bool(w.isfinite().all()) for w in load_file(model).values())
    scored = [entry.get("loss") for entry in resumed.journal]
    assert all(loss is None or math.isfinite(loss) for loss in scored)
    return resumed


def check(method: str, lie: type[adversary.Lying], out: Path) -> None:
    found = attempted(method, lie, out)
    if found["outcome"] == "stopped" and not (out / "checkpoint.safetensors").exists():
        assert found["line"].startswith("census: client"), found
        adversary.record(method, lie.label, found)
        return
    resumed = goes_on(method, out)
    accuracies = [entry["accuracy"] for entry in resumed.journal if entry.get("accuracy")]
    found["accuracy"] = accuracies[-1] if accuracies else None
    adversary.record(method, lie.label, found)


@pytest.mark.parametrize("method", tiers(KINDS, ("fedavg", "dl-sh")))
def test_the_largest_numbers_do_not_end_a_run(method: str, tmp_path: Path) -> None:
    check(method, adversary.Largest, tmp_path)


@pytest.mark.hostile
@pytest.mark.parametrize("lie", adversary.ATTEMPTS, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_a_well_formed_lie_ends_no_run(
    method: str, lie: type[adversary.Lying], tmp_path: Path
) -> None:
    check(method, lie, tmp_path)


@pytest.mark.hostile
@pytest.mark.parametrize("lie", adversary.CENSUS, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_a_lie_in_the_census_stops_the_run(
    method: str, lie: type[adversary.Lying], tmp_path: Path
) -> None:
    found = attempted(method, lie, tmp_path)
    assert found["outcome"] == "stopped" and found["line"].startswith("census: "), found
    adversary.record(method, lie.label, found)
