"""A user's callbacks: what they see, their state in checkpoints, and mistakes in one line."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from common.journal import Entry
from deploy.run.preflight import preflight
from server_app.callbacks import Callback
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from tests.support.tiny import flat, play

NAME = "tests.test_callbacks"


class Seen(Callback):
    """Counts rounds, keeps the count in its state, and writes down what it is given."""

    calls: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self) -> None:
        self.rounds = 0

    def begin(self, entries: Any) -> None:
        self.calls.append(("begin", [entry.round for entry in entries]))

    def after_round(self, entry: Entry) -> None:
        self.rounds += 1
        self.calls.append(("round", entry.model_copy()))

    def end(self) -> None:
        self.calls.append(("end", self.rounds))

    def state(self) -> dict[str, int]:
        return {"rounds": self.rounds}

    def load(self, state: Any) -> None:
        self.rounds = state["rounds"]


class Failing(Callback):
    def after_round(self, entry: Entry) -> None:
        if entry.round == 2:
            raise KeyError("no such key")


class NoJson(Callback):
    def state(self) -> dict[str, Any]:
        return {"at": object()}


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    Seen.calls.clear()


def test_it_sees_every_round_and_its_state_goes_on_after_a_resume(tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedavg", rounds=2, callbacks=f"{NAME}:Seen")
    done = play(settings)
    kinds = [kind for kind, _ in Seen.calls]
    assert kinds == ["begin", "round", "round", "round", "end"] and Seen.calls[0][1] == []
    entries = [entry for kind, entry in Seen.calls if kind == "round"]
    assert [entry.accuracy for entry in entries] == [e.get("accuracy") for e in done.journal]
    assert json.loads(checkpoint.load(tmp_path).callbacks[f"{NAME}:Seen"]) == {"rounds": 3}
    Seen.calls.clear()
    play({**settings, "rounds": 4, "resume": True})
    assert Seen.calls[0] == ("begin", [0, 1, 2]) and Seen.calls[-1] == ("end", 5)


def test_it_changes_no_bit_and_no_callback_is_compared_on_a_resume(tmp_path: Path) -> None:
    plain = play(flat(tmp_path / "plain", method="fedavg", rounds=2))
    seen = flat(tmp_path / "seen", method="fedavg", rounds=1, callbacks=f"{NAME}:Seen")
    play(seen)
    later = play({**seen, "rounds": 2, "resume": True, "callbacks": ""})
    assert later.weights == plain.weights


def test_going_back_to_a_round_takes_its_state(tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedavg", rounds=3, callbacks=f"{NAME}:Seen")
    play(settings)
    Seen.calls.clear()
    play({**settings, "resume": True, "from-round": 1})
    assert Seen.calls[0] == ("begin", [0, 1]) and Seen.calls[-1] == ("end", 4)


def test_under_privacy_it_sees_what_may_leave_the_server(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    play(
        flat(tmp_path, method="fedavg", rounds=1, callbacks=f"{NAME}:Seen", privacy__mode="central")
    )
    entry = Seen.calls[2][1]
    assert entry.round == 1 and entry.privacy.epsilon > 0
    assert not entry.replied and not entry.client_metrics and not entry.bytes


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Failing", "no such key"),
        ("NoJson", "callbacks: a state is not JSON: Object of type object"),
    ],
)
def test_an_error_ends_the_run_in_one_line_with_its_checkpoint(
    name: str, line: str, tmp_path: Path
) -> None:
    with pytest.raises(Stopped, match=line) as stopped:
        play(flat(tmp_path, method="fedavg", rounds=3, callbacks=f"{NAME}:{name}"))
    assert "\n" not in str(stopped.value)
    assert ("--resume" in str(stopped.value)) is (name == "Failing")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("seen", "callbacks = 'seen' is unknown: choose from"),
        (f"{NAME}:Nobody", "has no attribute 'Nobody'"),
        ("nowhere:Seen", "no module named 'nowhere'"),
        (f"{NAME}:NAME", "is no Callback"),
    ],
)
def test_a_wrong_name_is_one_line_before_the_run(name: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        preflight(flat(tmp_path, method="fedavg", callbacks=name))
    assert "\n" not in str(refused.value)
