"""Poisoned updates: refused, or the server undoes rounds without the clients that stand out."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from common.journal import Entry, Magnitude, Undone
from common.parse import parse
from deploy.report.read import read
from server_app.callbacks.collapse import collapse
from server_app.messaging import sanity
from server_app.messaging.sanity import suspects
from server_app.stopped import DivergedRound, Stopped
from server_app.storage import resume
from tests.support.battery import Tampering, changed_tensor, config, tiers, trained
from tests.support.scaled import LIAR, SIX, Scaled
from tests.support.tiny import Run, TinyRun, flat, play

HONEST = [0.9, 1.1, 1.0, 1.2, 0.8, 1.0]
LIES = {"a": [*HONEST[1:], 40.0], "b": [50.0, *HONEST[1:]], "-": HONEST}
QUIET = {**SIX, "fleet": "mlp@0.25", "rounds": 7}
SMALL: dict[str, Any] = {"clients": 4, "rounds": 1, "min_replies": 0.6, "train__epochs": 1}
SMALL |= {"data__samples": 80, "data__test_samples": 30}
METHODS = ("fedavg", "dafl", "fedin", "fedorion", "fedkf", "fedgen")
QUICK: dict[str, Any] = {"dafl": {"dafl__server_steps": 2}, "fedin": {"data__samples": 100}}


class Late(Scaled):  # type: ignore[misc]
    factor = -300.0
    rounds = (6,)


class Majority(Scaled):  # type: ignore[misc]
    liars = (1, 2, 3, 4)


def entry(
    t: int, changes: list[float], loss: float | None = None, refused: tuple[int, ...] = ()
) -> Entry:
    """Return the entry of a round with one client for each of ``changes``."""
    sizes = {k: Magnitude(largest=1.0, change=c, among=9) for k, c in enumerate(changes)}
    replied = [k for k in sizes if k not in refused]
    return Entry(round=t, loss=loss, magnitudes=sizes, replied=replied)


@pytest.mark.parametrize(
    ("changes", "refused", "standing_out"),
    [
        (HONEST, (), []),
        ([*HONEST[1:], 63.0], (), [5]),
        ([63.0, *HONEST[1:], 60.0], (), [0, 6]),
        ([63.0, *HONEST[1:], 60.0], (6,), [0]),
        ([63.0, *HONEST[:3]], (), []),  # four clients, within the changes of honest ones
        ([73.0, *HONEST[:3]], (), [0]),
        ([73.0, 74.0, *HONEST[:2]], (), [1]),  # at most one of four
        ([1.0, 1.0, 1.0, 1.0, 2.9], (), []),
        ([1.0, 1.0, 1.0, 1.0, 3.1], (), [4]),
        ([0.1, 0.5, 1.0, 3.0, 4.0], (), []),  # unequal quantities of data
        ([0.0] * 6, (), []),
    ],
)
def test_a_minority_with_unusual_changes_stands_out(
    changes: list[float], refused: tuple[int, ...], standing_out: list[int]
) -> None:
    architectures = dict.fromkeys(range(len(changes)), "mlp")
    assert [*suspects(entry(1, changes, refused=refused), architectures)] == standing_out


def test_a_change_is_compared_within_its_architecture() -> None:
    sent = entry(1, [1.0, 1.0, 1.0, 1.0, 1.0, 8.0, 8.0, 8.0, 8.0, 8.0])
    assert not suspects(sent, {k: "mlp" if k < 5 else "cnn2" for k in range(10)})
    assert suspects(sent, {k: "mlp" if k < 6 else "cnn2" for k in range(10)}).keys() == {5}


@pytest.mark.parametrize(
    ("rounds", "past", "repeated"),
    [
        ("9a 9a 90a ∞a", (), (1, [5])),  # an attack in every round
        ("1- 1- 1- ∞b", (), (4, [0])),
        ("1- 1- 9b ∞-", (), (3, [0])),  # visible one round later
        ("1- 1- 9a ∞b", (), (3, [5])),  # client 0 trained from a useless model
        ("1a 1- 1- ∞-", (), None),  # an old oddity without harm
        ("1- 9- 9- ∞-", (), None),
        ("9a 9a 9a ∞b", (1,), (2, [5])),  # each round is repeated once
        ("9a 9a 9a ∞a", (4,), None),
    ],
)
def test_the_round_after_the_last_sound_one_is_repeated(
    rounds: str, past: tuple[int, ...], repeated: tuple[int, list[int]] | None, tmp_path: Path
) -> None:
    entries = [Entry(round=0, loss=2.0)]
    for t, word in enumerate(rounds.split(), start=1):
        entries.append(entry(t, LIES[word[-1]], float(word[:-1].replace("∞", "inf"))))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for t in range(len(entries) - 2):
        (folder / f"{t}.safetensors").touch()
    config = parse(flat(tmp_path, **SIX))
    undone = [Undone(round=t, why="", suspects=[3]) for t in past]
    architectures, diverged = dict.fromkeys(range(6), "mlp"), DivergedRound("round 4: nan", 4)

    def plan() -> Undone:
        return resume.plan(diverged, config, entries, architectures, undone, guess=2.3)

    if repeated is None:
        with pytest.raises(DivergedRound, match="^round 4: nan"):
            plan()
        return
    assert (plan().round, plan().suspects) == repeated
    for path in folder.iterdir():  # as with keep = 1: only the newest checkpoint, of round 3
        path.unlink()
    assert (plan().round, plan().suspects) == (4, repeated[1])


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Four rounds with a client that ruins the model over rounds."""
    return play(flat(tmp_path_factory.mktemp("ruined"), **SIX, rounds=4), Scaled)


def test_a_client_that_ruins_the_model_is_left_out_from_the_start(ruined: TinyRun) -> None:
    (undone,) = ruined.journal[1]["undone"]
    assert undone["suspects"] == [LIAR]
    assert undone["why"].startswith("round 3: the loss of the server's model is")
    assert undone["why"].endswith("in round 1 client 2 with 32 times the median change stood out")
    assert {f["k"] for e in ruined.journal for f in e["failures"]} == {LIAR}
    assert [e["replied"] for e in ruined.journal[1:]] == [[0, 1, 3, 4, 5]] * 4
    assert ruined.summary["status"] == "completed"


@pytest.mark.full
def test_a_resumed_run_blames_the_same_client(ruined: TinyRun, tmp_path: Path) -> None:
    play(flat(tmp_path, **SIX, rounds=2), Scaled)
    resumed = play(flat(tmp_path, **SIX, rounds=4, resume=True), Scaled)
    assert resumed.timeless == ruined.timeless and resumed.weights == ruined.weights


def test_a_run_stops_and_blames_nobody_if_nobody_stands_out(tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        play(flat(tmp_path, **SIX, rounds=6), Majority)
    assert "the loss of the server's model is" in str(stopped.value)
    assert "client" not in str(stopped.value)


@pytest.mark.parametrize(
    ("former", "accuracy", "before"),
    [
        ([0.77, 0.91, 0.94, 0.95, 0.95], 0.0, 0.945),
        ([0.77, 0.91, 0.94, 0.95, 0.95], 0.74, 0.945),
        ([0.77, 0.91, 0.94, 0.95, 0.95], 0.79, None),  # less than a fifth of what it has learnt
        ([0.91, 0.95], 0.0, None),  # too few to compare with
        ([0.3, 0.9, 0.94, 0.95, 0.2], 0.1, None),  # its accuracy swings
        ([0.1, 0.1, 0.1, 0.1], 0.0, None),  # it has learnt nothing
        ([0.2, 0.9, 0.9, 0.9, 0.9], 0.5, 0.9),
        ([0.7, 0.8, 0.8, 0.8], 0.55, None),  # less than three ranges of 0.1
        ([0.7, 0.8, 0.8, 0.8], 0.45, 0.8),
    ],
)
def test_a_collapse_is_a_drop_beyond_the_range_of_the_scores_before(
    former: list[float], accuracy: float, before: float | None
) -> None:
    assert collapse(accuracy, former, chance=0.1) == pytest.approx(before)


def collapsed(out: Path, reaction: str, **changes: Any) -> TinyRun:
    return play(flat(out, **{**QUIET, "score__collapse": reaction, **changes}), Late)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``late("undo")``: seven rounds, of which a liar ruins the sixth, played once."""
    return cache(lambda reaction: collapsed(tmp_path_factory.mktemp("late"), reaction))


def test_a_collapsed_accuracy_is_reported(late: Run) -> None:
    run = late("report")
    (note,) = run.journal[6]["notes"]
    assert note.startswith("round 6: the accuracy collapsed to 0.") and "from 1.0000" in note
    assert "client 2 with" in note and not run.journal[6]["failures"]
    assert run.summary["warnings"] == [note] and note in read(run.folder).notes
    assert run.summary["status"] == "completed"


def test_a_collapsed_round_is_repeated_once_without_its_suspects(late: Run) -> None:
    run = late("undo")
    assert [e["replied"] for e in run.journal[5:]] == [[*range(6)], [0, 1, 3, 4, 5], [*range(6)]]
    (undone,) = run.journal[6]["undone"]
    assert undone["suspects"] == [LIAR] and undone["once"]
    (failure,) = run.journal[6]["failures"]
    assert failure["k"] == LIAR and failure["reason"].startswith("left out once")
    assert run.journal[6]["accuracy"] > 0.9 and "warnings" not in run.summary


@pytest.mark.full
@pytest.mark.parametrize("reaction", ["report", "undo"])
def test_a_resumed_run_notices_the_same_collapse(reaction: str, late: Run, tmp_path: Path) -> None:
    straight = late(reaction)
    collapsed(tmp_path, reaction, rounds=5)
    resumed = collapsed(tmp_path, reaction, resume=True)
    assert resumed.timeless[6:] == straight.timeless[6:] and resumed.weights == straight.weights


@pytest.mark.full
@pytest.mark.parametrize(
    "changes", [{"score__collapse": "off"}, {"privacy__mode": "local", "sanity": 0}]
)
def test_a_collapse_is_not_noticed(changes: dict[str, Any], tmp_path: Path) -> None:
    private = {"privacy__noise_multiplier": 0.01, "privacy__clip": 1.0}
    private = private if "privacy__mode" in changes else {}
    run = play(flat(tmp_path, **{**QUIET, "rounds": 6, **private, **changes}), Late)
    assert run.journal[6]["accuracy"] < 0.75
    assert not run.journal[6].get("notes") and "warnings" not in run.summary


@pytest.mark.full
@pytest.mark.parametrize("everyone", [False, True])
def test_a_collapse_that_cannot_be_undone_is_reported(everyone: bool, tmp_path: Path) -> None:
    kind = type("Kind", (Late,), {"liars": tuple(range(6)) if everyone else (LIAR, 3)})
    changes: dict[str, Any] = {} if everyone else {"average__robust": "none"}
    run = play(flat(tmp_path, **QUIET, score__collapse="undo", **changes), kind)
    noted = bool(run.journal[6].get("notes"))
    assert noted == everyone and bool(run.journal[6].get("undone")) != everyone
    assert run.summary["status"] == "completed"


@pytest.mark.full
def test_a_round_is_not_repeated_with_too_few_clients_for_krum(tmp_path: Path) -> None:
    kind = type("Kind", (Late,), {"liars": (LIAR, 3), "rounds": (4,)})
    krum = {"average__robust": "multi-krum", "average__trim": 0.2, "clients": 5, "rounds": 4}
    run = play(flat(tmp_path, **{**QUIET, **krum, "score__collapse": "undo"}), kind)
    (note,) = run.journal[4]["notes"]
    assert "client 2 with" in note and "client 3 with" in note
    assert run.summary["status"] == "completed"


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
def test_a_number_beyond_reason_is_refused_and_the_run_goes_on(method: str, tmp_path: Path) -> None:
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
def test_without_the_bound_a_round_is_undone_once(method: str, tmp_path: Path) -> None:
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


def test_the_change_is_per_step_and_architecture_from_three_clients_on(tmp_path: Path) -> None:
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
