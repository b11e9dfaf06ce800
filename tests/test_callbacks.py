"""A user's callbacks: what they see, their state in checkpoints, and mistakes in one line."""

import importlib
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import server_app.callbacks
from common.journal import Entry
from deploy.run.preflight import preflight
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from tests.support.own_modules import importing_from, module
from tests.support.tiny import flat, play

CALLBACKS = """
from server_app.callbacks import Callback


class Seen(Callback):
    calls = []

    def __init__(self):
        self.rounds = 0

    def begin(self, entries):
        self.calls.append(("begin", [entry.round for entry in entries]))

    def after_round(self, entry):
        self.rounds += 1
        self.calls.append(("round", entry.model_copy()))
        entry.accuracy = -1.0  # changes no journal

    def end(self):
        self.calls.append(("end", self.rounds))

    def state(self):
        return {"rounds": self.rounds}

    def load(self, state):
        self.rounds = state["rounds"]


class Failing(Callback):
    def after_round(self, entry):
        if entry.round == 2:
            raise KeyError("no such key")


class NoJson(Callback):
    def state(self):
        return {"at": object()}


CALLS = Seen.calls
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of callbacks, under a new name."""
    (tmp_path / "code").mkdir()
    name = module(tmp_path / "code", CALLBACKS)
    importing_from(tmp_path / "code", monkeypatch)
    return importlib.import_module(name)


def test_it_sees_every_round_and_its_state_goes_on_after_a_resume(own: Any, tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedavg", rounds=2, callbacks=f"{own.__name__}:Seen")
    done = play(settings)
    kinds = [kind for kind, _ in own.Seen.calls]
    assert kinds == ["begin", "round", "round", "round", "end"] and own.Seen.calls[0][1] == []
    entries = [entry for kind, entry in own.Seen.calls if kind == "round"]
    assert [entry.accuracy for entry in entries] == [e.get("accuracy") for e in done.journal]
    assert json.loads(checkpoint.load(tmp_path).callbacks[f"{own.__name__}:Seen"]) == {"rounds": 3}
    own.Seen.calls.clear()
    play({**settings, "rounds": 4, "resume": True})
    assert own.Seen.calls[0] == ("begin", [0, 1, 2]) and own.Seen.calls[-1] == ("end", 5)


@pytest.mark.parametrize(
    ("scores", "best"),
    [([0.5, 0.7, 0.6], 0.7), ([{"rmse": 3.0}, {"rmse": 2.0}, {"rmse": 4.0}], 2.0)],
)
def test_the_example_knows_which_score_is_better(scores: list[Any], best: float) -> None:
    names: dict[str, Any] = {"Callback": server_app.callbacks.Callback}
    text = (server_app.callbacks.__doc__ or "").partition("``callbacks``:\n\n")[2]
    exec(textwrap.dedent(text), names)
    example = names["Best"]()
    example.after_round(Entry(round=0))
    for t, score in enumerate(scores, 1):
        fields = {"measures": score} if isinstance(score, dict) else {"accuracy": score}
        example.after_round(Entry(round=t, **fields))
    assert example.state() == {"best": best}


def test_it_changes_no_bit_and_no_callback_is_compared_on_a_resume(
    own: Any, tmp_path: Path
) -> None:
    plain = play(flat(tmp_path / "plain", method="fedavg", rounds=2))
    seen = flat(tmp_path / "seen", method="fedavg", rounds=1, callbacks=f"{own.__name__}:Seen")
    play(seen)
    later = play({**seen, "rounds": 2, "resume": True, "callbacks": ""})
    assert later.weights == plain.weights


def test_going_back_to_a_round_takes_its_state(own: Any, tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedavg", rounds=3, callbacks=f"{own.__name__}:Seen")
    play(settings)
    own.Seen.calls.clear()
    play({**settings, "resume": True, "from-round": 1})
    assert own.Seen.calls[0] == ("begin", [0, 1]) and own.Seen.calls[-1] == ("end", 4)


def test_under_privacy_it_sees_what_may_leave_the_server(own: Any, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    play(
        flat(
            tmp_path,
            method="fedavg",
            rounds=1,
            callbacks=f"{own.__name__}:Seen",
            privacy__mode="central",
        )
    )
    entry = own.Seen.calls[2][1]
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
    name: str, line: str, own: Any, tmp_path: Path
) -> None:
    with pytest.raises(Stopped, match=line) as stopped:
        play(flat(tmp_path, method="fedavg", rounds=3, callbacks=f"{own.__name__}:{name}"))
    assert "\n" not in str(stopped.value)
    assert ("--resume" in str(stopped.value)) is (name == "Failing")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("seen", "callbacks = 'seen' is unknown: choose from module:attribute"),
        ("{own}:Nobody", "has no attribute 'Nobody'"),
        ("nowhere:Seen", "no module named 'nowhere'"),
        ("{own}:CALLS", "is no Callback"),
    ],
)
def test_a_wrong_name_is_one_line_before_the_run(
    name: str, line: str, own: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        preflight(flat(tmp_path, method="fedavg", callbacks=name.format(own=own.__name__)))
    assert "\n" not in str(refused.value)
