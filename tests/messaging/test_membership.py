"""Clients join, leave and return during a run, by a list of events or as nodes come and go."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from common.journal import members
from common.parse import to_toml
from server_app.messaging.channel import CENSUS
from server_app.messaging.exchange import UNAVAILABLE
from server_app.messaging.schedule import Schedule
from server_app.stopped import Stopped
from server_app.storage import removals
from server_app.storage.journal import Journal
from tests.support.battery import EXAMPLE, METHODS, config, failed, of_families
from tests.support.coming import Coming, changes, played_by
from tests.support.commandline import error_of
from tests.support.tiny import flat, listed, play

EVENTS = """
event = [
  {round = 2, client = 1, kind = "left"},
  {round = 3, client = 3, kind = "joined"},
  {round = 4, client = 1, kind = "returned"},
  {round = 5, client = 0, kind = "replaced"},
]
"""
LEFT = '{round = 2, client = 1, kind = "left"}'
ELASTIC = {"method": "scaffold", "rounds": 5, "min_clients": 2, "leave_after": 2}


# A list of events.
@pytest.mark.parametrize("method", of_families(METHODS))
def test_every_method_copes_with_clients_that_come_and_go(method: str, tmp_path: Path) -> None:
    settings = {"membership": listed(tmp_path, EVENTS), "rounds": 5, "clients": 4}
    run = play(config(method, tmp_path / "run", **settings))
    events = [(2, 1, "left"), (3, 3, "joined"), (4, 1, "returned"), (5, 0, "replaced")]
    assert changes(run) == events
    selected = [[0, 1, 2], [0, 2], [0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert [entry["selected"] for entry in run.journal[1:]] == selected
    assert not [failure for entry in run.journal for failure in entry["failures"]]
    assert run.summary["status"] == "completed"
    assert len(run.journal[-1]["scores"]) == 4


@pytest.mark.parametrize("method", ["scaffold", EXAMPLE])
def test_events_that_change_nothing_change_no_bit(method: str, tmp_path: Path) -> None:
    text = 'event = [{round = 9, client = 1, kind = "left"}]'
    plain = play(config(method, tmp_path / "plain"))
    settings = {"membership": listed(tmp_path, text), "min_clients": 2}
    replayed = play(config(method, tmp_path / "run", **settings))
    assert replayed.timeless == plain.timeless and replayed.weights == plain.weights


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ("3", "field 'event': Input should be a valid list"),
        ("[", "Invalid value"),
        (None, "cannot be read: No such file"),
        ('[{round = 2, client = 4, kind = "left"}]', "but the clients are 0 to 3"),
        ('[{round = 0, client = 1, kind = "left"}]', "round"),
        ('[{round = 2, client = 1, kind = "lost"}]', "kind"),
        ('[{round = 2, client = 1, kind = "returned"}]', "but it had not left"),
        (
            f'[{LEFT}, {{round = 3, client = 1, kind = "joined"}}]',
            "client 1 joined in round 3, but it took part before",
        ),
        (
            f'[{LEFT}, {{round = 3, client = 1, kind = "missed"}}]',
            "client 1 missed in round 3, but it does not take part then",
        ),
    ],
)
def test_impossible_events_are_one_line(events: str | None, reason: str, tmp_path: Path) -> None:
    path = Path(listed(tmp_path, f"event = {events}"))
    if events is None:
        path.unlink()
    with pytest.raises(ValueError, match=reason) as error:
        Schedule(path, 4)
    assert str(error.value).startswith(f"membership = {path}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("min-clients=5", "min-clients = 5 is more than clients = 4"),
        ("select.tags=tpu", "select.tags: no client has the tag 'tpu'; the clients' tags are none"),
        ("membership=", "events.toml: client 4 left in round 2, but the clients are 0 to 3"),
    ],
)
def test_a_mistake_is_one_line_of_the_command(setting: str, line: str, tmp_path: Path) -> None:
    own = {"out": "", "state-dir": "", "experiment": ""}
    (tmp_path / "run.toml").write_text(to_toml(flat(tmp_path, rounds=1) | own))
    if setting == "membership=":
        setting += listed(tmp_path, 'event = [{round = 2, client = 4, kind = "left"}]')
    words = ("--out", tmp_path / "out", "--workers", 0, "-s", setting)
    error = error_of("run", tmp_path / "run.toml", *words)
    assert error.startswith("error: ") and line in error


# Nodes that come and go.
def test_a_run_starts_with_some_clients_and_the_others_join(tmp_path: Path) -> None:
    settings = flat(tmp_path / "run", **{**ELASTIC, "wait": 5.0})
    run = played_by(settings, Coming.of({0: [1, 2], 3: [1]}))
    assert [client["k"] for client in run.journal[0]["clients"]] == [1, 2]
    assert changes(run) == [(2, 3, "joined"), (3, 0, "joined")]
    assert [len(entry["replied"]) for entry in run.journal[1:]] == [2, 3, 4, 4, 4]
    entries = Journal(tmp_path / "run").entries()
    assert [member.k for member in members(entries)] == [0, 1, 2, 3]
    assert [client["k"] for client in run.summary["clients"]] == [0, 1, 2, 3]
    again = {**ELASTIC, "membership": str(tmp_path / "run" / "journal.jsonl")}
    replayed = play(flat(tmp_path / "again", **again))
    assert changes(replayed) == changes(run) and replayed.weights == run.weights


def test_an_absent_client_leaves_and_is_no_failure_until_it_returns(tmp_path: Path) -> None:
    settings = flat(tmp_path / "run", **{**ELASTIC, "min_replies": 0.5})
    run = played_by(settings, Coming.of({1: [2, 3, 4]}))
    assert changes(run) == [(3, 1, "left"), (5, 1, "returned")]
    missing = [[failure["k"] for failure in entry["failures"]] for entry in run.journal[1:]]
    assert missing == [[], [1], [], [], []]
    assert run.journal[3]["events"][0]["cause"] == "not connected before 2 rounds"
    journal = str(tmp_path / "run" / "journal.jsonl")
    again = {**ELASTIC, "min_replies": 0.5, "membership": journal}
    replayed = play(flat(tmp_path / "again", **again))
    assert replayed.weights == run.weights, "the failure of round 2 is replayed too"


class Losing(Coming):
    """Loopback on which client 1 comes back on another machine in round 3."""

    def get_node_ids(self) -> Iterable[int]:
        if self.t == 3:
            state = Path(str(self._run_config["state-dir"]))
            shutil.rmtree(state / "test" / "1", ignore_errors=True)
        return super().get_node_ids()


def test_a_client_without_its_state_is_replaced_and_the_server_forgets_it(tmp_path: Path) -> None:
    settings = {**ELASTIC, "leave_after": 1}
    run = played_by(flat(tmp_path / "run", **settings), Losing.of({1: [3]}))
    assert changes(run) == [(3, 1, "left"), (4, 1, "replaced")]
    assert not any(entry["failures"] for entry in run.journal)
    journal = str(tmp_path / "run" / "journal.jsonl")
    replayed = play(flat(tmp_path / "again", **settings, membership=journal))
    assert replayed.weights == run.weights


def test_a_member_that_lost_its_state_fails_once(tmp_path: Path) -> None:
    run = played_by(flat(tmp_path, **{**ELASTIC, "min_replies": 0.5}), Losing)
    assert changes(run) == [(4, 1, "replaced")]
    assert [len(entry["failures"]) for entry in run.journal[1:]] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(("late", "joined"), [(2, [(4, 3, "joined")]), (9, [])])
def test_a_newcomer_without_a_reply_is_asked_before_three_rounds(
    late: int, joined: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Coming):
        away = {3: [1]}
        asked = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            for reply in super().pull_messages(message_ids):
                census = reply.metadata.message_type == CENSUS and self.t > 1
                self.asked += census
                expired = census and self.asked <= late
                yield failed(reply, UNAVAILABLE, "expired") if expired else reply

    run = played_by(flat(tmp_path, **{**ELASTIC, "rounds": 6}), Slow)
    assert changes(run) == joined
    assert ("node 4 is ignored: no reply within" in caplog.text) is (not joined)


class Doubled(Coming):
    """A federation with a further node, which is client 1 too."""

    def __init__(self, clients: int, config: dict[str, Any], **more: Any) -> None:
        second = {clients: {"partition-id": 1, "num-partitions": clients}}
        super().__init__(clients + 1, config, node_configs=second, **more)


def test_a_second_node_replaces_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = flat(tmp_path, **{**ELASTIC, "min_replies": 0.5})
    later = Doubled.of({4: [1], 3: range(9), 1: [3, 4, 5]})  # node 5 appears before round 2
    run = played_by(settings, later)
    assert "node 5 is ignored: the place of client 1 belongs to node 2" in caplog.text
    assert changes(run) == [] and [entry["replied"] for entry in run.journal[1:]] == [[0, 1, 2]] * 5


class Operated(Coming):
    """Loopback whose operator removes client 2 in round 2, ``until`` that round."""

    until = 2

    def get_node_ids(self) -> Iterable[int]:
        folder = Path(str(self._run_config["out"]))
        removals.write(folder, frozenset({2} if 2 <= self.t <= self.until else ()))
        return super().get_node_ids()


def test_a_removed_client_returns_though_its_node_was_ignored(tmp_path: Path) -> None:
    # client 3 is away, so that there is a free place, and the nodes are asked
    grid = type("Grid", (Operated,), {"away": {3: range(9)}, "until": 3})
    run = played_by(flat(tmp_path, **ELASTIC), grid)
    assert changes(run) == [(3, 2, "left"), (5, 2, "returned")]


def test_the_operator_removes_a_client_and_takes_it_back(tmp_path: Path) -> None:
    run = played_by(flat(tmp_path, method="scaffold", rounds=4), Operated)
    assert changes(run) == [(3, 2, "left"), (4, 2, "returned")]
    assert run.journal[3]["events"][0]["cause"] == "removed by the operator"


def test_too_few_clients_stop_the_run(tmp_path: Path) -> None:
    settings = {**ELASTIC, "leave_after": 1, "min_clients": 3, "wait": 0.3}
    reason = r"round 2: 2 of 4 clients take part, min-clients = 3, .* wait = 0.3 s"
    with pytest.raises(Stopped, match=reason):
        played_by(flat(tmp_path, **settings), Coming.of({1: [2], 3: [2]}))


def test_a_run_resumes_without_a_client_and_with_one_that_is_back(tmp_path: Path) -> None:
    settings = {**ELASTIC, "wait": 5.0}
    with pytest.raises(Stopped):
        played_by(flat(tmp_path, **settings), Coming.of({0: range(2), 1: [3], 2: [3], 3: [3]}))
    grid = Coming.of({3: range(9)}, t=3)
    run = played_by(flat(tmp_path, **settings, resume=True), grid)
    assert changes(run) == [(2, 0, "joined"), (3, 3, "left")]
    assert run.journal[3]["events"][0]["cause"] == "not connected when the run resumed"
    assert run.journal[5]["replied"] == [0, 1, 2]


def test_a_client_that_refuses_a_resumed_run_leaves_with_its_reason(tmp_path: Path) -> None:
    refused = "rounds = 4 is not allowed on client 3; its policy (max-rounds) allows 3"

    class Refusing(Coming):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            for reply in super().pull_messages(message_ids):
                why = f"<class 'deploy.flower.owner.rules.Refused'>:<'{refused}'>"
                yield failed(reply, 2, why) if reply.metadata.src_node_id == 4 else reply

    play(flat(tmp_path, **ELASTIC | {"rounds": 3}))
    run = played_by(flat(tmp_path, **ELASTIC | {"rounds": 4}, resume=True), Refusing)
    assert changes(run)[0] == (4, 3, "left")
    assert refused in run.journal[4]["events"][0]["cause"]
