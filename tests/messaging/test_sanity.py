"""Finite numbers beyond all reason: refused, or the round is undone without whoever sent them."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from common.journal import Magnitude
from server_app.messaging import sanity
from server_app.stopped import Stopped
from tests.support.battery import Tampering, changed_tensor, config, tiers, trained
from tests.support.tiny import TinyRun, flat, play

SMALL: dict[str, Any] = {"clients": 4, "rounds": 1, "min_replies": 0.6, "train__epochs": 1}
SMALL |= {"data__samples": 80, "data__test_samples": 30}
METHODS = ("fedavg", "dafl", "fedin", "fedorion", "fedkf", "fedgen")
QUICK: dict[str, dict[str, Any]] = {
    "dafl": {"dafl__server_steps": 2},
    "fedin": {"data__samples": 100},
}


class Liar(Tampering):
    """One of client 1's weights is 3e38 in round 1, whenever that is asked for."""

    def _changed(self, reply: Message) -> Message:
        if trained(reply, 1):
            changed_tensor(reply.content, one_huge)
        return reply


def one_huge(numbers: Any) -> Any:
    changed = numbers.clone()
    changed[3] = 3e38
    return changed


def lied(settings: dict[str, Any]) -> TinyRun:
    return play(settings, Liar(int(settings["clients"]), settings, workers=0))


@pytest.mark.parametrize("method", tiers(METHODS))
def test_one_number_beyond_reason_is_refused_and_the_run_goes_on(
    method: str, tmp_path: Path
) -> None:
    run = lied(config(method, tmp_path, **{**SMALL, **QUICK.get(method, {})}))
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 2, 3]]
    (failure,) = run.journal[1]["failures"]
    reason = failure["reason"]
    assert failure["k"] == 1 and "sanity = 720" in reason
    told = "its change per step is", "it has the number 3e+38"
    assert any(each in reason for each in told)
    assert run.journal[1]["magnitudes"]["1"]["largest"] > 2e38
    assert run.summary["status"] == "completed"


@pytest.mark.parametrize("method", tiers(METHODS))
def test_without_the_bound_a_round_is_undone_once_without_the_liar(
    method: str, tmp_path: Path
) -> None:
    settings = config(method, tmp_path, **{**SMALL, **QUICK.get(method, {})}, sanity=0)
    run = lied(settings)
    assert [entry["round"] for entry in run.journal] == [0, 1]
    (undone,) = run.journal[1]["undone"]
    assert undone["suspects"] == [1] and undone["round"] == 1
    assert run.journal[1]["replied"] == [0, 2, 3]
    (failure,) = run.journal[1]["failures"]
    assert failure["k"] == 1 and failure["reason"].startswith("left out from now on")
    longer = play({**settings, "resume": True, "rounds": 2})
    assert longer.journal[2]["selected"] == [0, 2, 3] and longer.summary["status"] == "completed"


def test_a_round_that_is_absurd_again_stops_the_run_in_one_line(tmp_path: Path) -> None:
    class Liars(Liar):
        second = 0

        def _changed(self, reply: Message) -> Message:
            if trained(reply, node=3):
                self.second += 1
                if self.second == 2:
                    changed_tensor(reply.content, one_huge)
            return super()._changed(reply)

    settings = flat(tmp_path, method="fedavg", rounds=1, sanity=0)
    line = "round 1: the loss of the server's model is .*; client 2 with .* stood out"
    with pytest.raises(Stopped, match=line):
        play(settings, Liars)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "stopped"
    again = play({**settings, "resume": True})
    assert again.journal[1]["selected"] == [0, 2, 3]


def test_what_is_beyond() -> None:
    found = {
        0: Magnitude(largest=1.0, change=1.0, among=3),
        1: Magnitude(largest=5.0, change=721.0, among=3),
        2: Magnitude(largest=8e6),
        3: Magnitude(largest=7e6, change=719.0, among=3),
    }
    assert sanity.beyond(found, 720.0) == {
        1: "w: its change per step is 7.2e+02 times the median of 3 clients, sanity = 720",
        2: "it has the number 8e+06, sanity = 720 allows 7.2e+06",
    }
    assert sanity.beyond(found, 0.0) == {}


def test_the_change_is_per_step_within_one_architecture_from_three_clients_on(
    tmp_path: Path,
) -> None:
    mixed = {"fleet": "mlp@0.25,cnn2@0.5", "clients": 5, "average__across": "same"}
    run = play(flat(tmp_path, method="fedavg", rounds=1, **mixed))
    told = run.journal[1]["magnitudes"]
    assert [told[str(k)]["among"] for k in (0, 2, 4)] == [3, 3, 3]
    assert "change" not in told["1"] and "change" not in told["3"]
    assert sorted(told[str(k)]["change"] for k in (0, 2, 4))[1] == 1.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 3}, ""),
        ({"clients": 2}, "parameters of mlp@0.25"),
        ({"clients": 3, "per_round": 2}, "parameters of mlp@0.25"),
        ({"clients": 4, "fleet": "cnn2@0.5,cnn3@0.5", "average__across": "layerwise"}, "cnn3@0.5"),
    ],
)
def test_a_robust_average_of_two_says_that_it_protects_nothing(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {"fleet": "mlp@0.25", "rounds": 1, "train__epochs": 1, "average__robust": "median"}
    run = play(flat(tmp_path, method="fedavg", **{**given, **changes}))
    notes = run.journal[0].get("notes", [])
    assert len(notes) == bool(said) and all(said in note for note in notes)
