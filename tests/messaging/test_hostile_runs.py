"""Whole runs with a client that lies, twice, late, too much, or under another's name."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.app import Message
from flwr.common.constant import ErrorCode

from client_app.participant import Participant
from common.flower.rpc import HALFWAY
from common.models import MODELS
from common.parse import parse
from deploy.flower.messages import empty
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.battery import Swapping, Tampering, changed_tensor, failed, trained
from tests.support.hostile import with_field
from tests.support.tiny import TinyRun, flat, play


class Twice(Loopback):  # type: ignore[misc]
    """Delivers every reply twice, and the replies of the exchange before once more."""

    before: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = list(super().pull_messages(list(message_ids)))
        old, self.before = self.before, arrived or self.before
        return [*old, *arrived, *arrived]


@pytest.mark.full
def test_replies_that_come_again_change_nothing(tmp_path: Path) -> None:
    plain = play(flat(tmp_path / "plain", method="fedavg"))
    twice = play(flat(tmp_path / "twice", method="fedavg"), Twice)
    assert twice.timeless == plain.timeless and twice.weights == plain.weights


class Usurping(Tampering):
    """Node 2's replies say that node 3 sent them."""

    def _changed(self, reply: Message) -> Message:
        if trained(reply):
            reply.metadata.__dict__["_src_node_id"] = 3
        return reply


class Expired(Tampering):
    """The message to node 2 outlived its ttl, so that the SuperLink has no reply to it."""

    code, reason = ErrorCode.MESSAGE_UNAVAILABLE, "Message Unavailable"

    def _changed(self, reply: Message) -> Message:
        return failed(reply, self.code, self.reason) if trained(reply) else reply


class Halfway(Expired):
    """Node 2's replies stop halfway, as Flower's grid then says."""

    reason = f"{HALFWAY}, without 3f"


class Unreadable(Loopback):  # type: ignore[misc]
    """Flower cannot put node 2's training replies together, and raises whenever it tries."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        for name in names:
            question = self._heads.get(name)
            about = None if question is None else empty(question).metadata
            if about is not None and about.dst_node_id == 2 and about.message_type == "train":
                raise KeyError("arraychunk_ids\nand more")
        return list(super().pull_messages(names))


@pytest.mark.parametrize(
    ("grid", "kind", "reason"),
    [
        (Usurping, "not authentic", "another node answered in its place"),
        (Expired, "late", "no reply within 3600 s"),
        (Halfway, "late", "the reply stopped halfway, without 3f"),
        (Unreadable, "refused", "its reply cannot be read: KeyError: 'arraychunk_ids\\nand more'"),
    ],
)
def test_the_run_goes_on_without_a_reply_from_elsewhere_or_beyond_reading(
    grid: type[Loopback], kind: str, reason: str, tmp_path: Path
) -> None:
    result = play(flat(tmp_path, method="fedavg", rounds=1, min_replies=0.75), grid)
    assert result.journal[1]["replied"] == [0, 2, 3]
    assert result.journal[1]["failures"] == [{"k": 1, "round": 1, "reason": reason, "kind": kind}]


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (Usurping, "another node answered in a client's place"),
        (Halfway, "the reply stopped halfway"),
    ],
)
def test_a_private_run_notes_the_released_reason_alone(
    grid: type[Loopback], reason: str, tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy__mode": "central", "privacy__clip": 0.01, "fleet": "mlp@0.25"}
    run = play(flat(tmp_path, method="fedavg", rounds=1, **private), grid)
    assert run.journal[1]["notes"] == [f"{reason}; a missing reply counts as a zero update"]


def test_a_reply_above_max_mb_is_left_out_and_named(tmp_path: Path) -> None:
    two = {"method": "fedorion", "clients": 2, "fleet": "mlp@0.25,lenet5", "rounds": 1}
    result = play(flat(tmp_path, **two, min_replies=0.5, wire__max_mb=0.1))
    (failure,) = result.journal[1]["failures"]
    assert failure["k"] == 1 and "wire.max-mb = 0.1" in failure["reason"]


def test_the_default_max_mb_lets_the_largest_models_pass_twice(tmp_path: Path) -> None:
    limit = parse(flat(tmp_path)).wire.max_mb
    assert limit >= 2 * 200
    assert limit >= 2 * 4 * max(row.params for row in MODELS.values()) / 1e6


class Boasting(Tampering):
    """Client 1 brings a network of gigabytes, so it says."""

    def _changed(self, reply: Message) -> Message:
        if reply.metadata.src_node_id == 2 and reply.metadata.message_type == "query.hello":
            reply.content = with_field(reply.content, ("model",), "resnet34@16")
        return reply


@pytest.mark.parametrize("method", ["fedavg", "fedgkt"])
def test_a_model_that_could_not_be_sent_is_not_built(method: str, tmp_path: Path) -> None:
    settings = flat(tmp_path, method=method, fleet="cnn2@0.5,cnn3@0.5", global_model="cnn3@0.5")
    if method == "fedavg":
        settings["average.across"] = "same"
    with pytest.raises(Stopped, match=r"client 1: resnet34@16 has 2\d{4} MB, wire.max-mb = 1000"):
        play(settings, Boasting)


def swapped(out: Path, changes: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    config = flat(out, **{"method": "fedavg", "rounds": 3, "min_replies": 0.5, **settings})
    grid = Swapping(4, config, workers=0)
    grid.changes = changes
    return play(config, grid).journal


def claims(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The failures of nodes that claim a client's place."""
    return [f for e in journal[1:] for f in e["failures"] if "claims its place" in f["reason"]]


@pytest.mark.full
def test_without_keys_a_client_may_come_back_as_another_node(tmp_path: Path) -> None:
    journal = swapped(tmp_path, {})
    assert [entry["replied"] for entry in journal[1:]] == [[0, 1, 2, 3]] * 3
    assert [entry["failures"] for entry in journal[1:]] == [[]] * 3


def test_with_keys_no_other_node_gets_a_clients_place(tmp_path: Path) -> None:
    journal = swapped(tmp_path, {}, rebind=False)
    assert [entry["replied"] for entry in journal[1:]] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3]]
    reason = "node 99 claims its place and is refused: it belongs to node 3 (rebind = false)"
    assert claims(journal) == [{"k": 2, "round": 2, "reason": reason, "kind": "not authentic"}]


def test_a_private_run_notes_a_claimed_place_without_node_and_client(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy__mode": "central", "privacy__clip": 0.01, "fleet": "mlp@0.25"}
    journal = swapped(tmp_path, {}, rebind=False, min_replies=1.0, **private)
    claim = "a node claims a client's place and is refused; a missing reply counts as a zero update"
    assert claim in journal[2]["notes"] and "failures" not in journal[2]


@pytest.mark.full
def test_a_node_that_says_something_else_than_the_census_heard_is_refused(tmp_path: Path) -> None:
    journal = swapped(tmp_path, {"model": "lenet5"}, method="fedorion")
    why = "its information differs from that of node 3 in the census"
    reason = f"node 99 claims its place and is refused: {why}"
    assert claims(journal) == [{"k": 2, "round": 2, "reason": reason, "kind": "not authentic"}]
    assert journal[2]["replied"] == journal[3]["replied"] == [0, 1, 3]


class Late(Swapping):
    """Node 99's answer is there when it is looked for the ``there``-th time."""

    there = 10**6
    kept: Message | None = None
    asked = looks = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        for reply in super().pull_messages(names):
            if reply.metadata.src_node_id == 99:
                self.kept = reply
                self.asked += 1
            else:
                yield reply
        if self.kept is not None and self.kept.metadata.reply_to_message_id in names:
            self.looks += 1
            if self.looks == self.there:
                yield self.kept


@pytest.mark.parametrize(
    ("rebind", "there", "times"),
    [(True, 10**6, 5), (False, 10**6, 1), (False, 3, 1)],
    ids=["it could be a client", "it cannot", "it cannot, and says who it is in the end"],
)
def test_a_stranger_that_says_nothing_is_asked_again_only_if_it_could_be_a_client(
    rebind: bool, there: int, times: int, tmp_path: Path
) -> None:
    config = flat(tmp_path, method="fedavg", rounds=6, min_replies=0.5, rebind=rebind, wait=0.2)
    grid = Late(4, config, workers=0)
    grid.there = there
    journal = play(config, grid).journal
    assert [entry["replied"] for entry in journal[1:]] == [[0, 1, 2, 3], *[[0, 1, 3]] * 5]
    assert grid.asked == times
    found = [(claim["k"], claim["round"]) for claim in claims(journal)]
    assert found == ([(2, 4)] if there == 3 else []) and (there != 3 or grid.looks == 3)


class Renumbered(Loopback):  # type: ignore[misc]
    """Client 1 is served by node 77."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._nodes[77] = self._nodes.pop(2)


@pytest.mark.parametrize("rebind", [True, False])
def test_a_resumed_run_knows_its_nodes(rebind: bool, tmp_path: Path) -> None:
    play(flat(tmp_path, method="fedavg", rounds=1, rebind=False))
    settings = flat(tmp_path, method="fedavg", rounds=2, resume=True, rebind=rebind)
    if rebind:
        assert play(settings, Renumbered).summary["rounds"] == 2
        return
    line = "census: client 1 is node 77 now, in this run it was node 2; if its key was replaced"
    with pytest.raises(Stopped, match=line):
        play(settings, Renumbered)
    same = play(flat(tmp_path, method="fedavg", rounds=2, resume=True, rebind=False))
    assert same.summary["status"] == "completed"


def test_a_reason_prints_as_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: Any, **__: Any) -> Any:
        raise OSError("\x1b[2J\x1b]0;owned\x07 disk" + "!" * 10_000)

    monkeypatch.setattr(Participant, "train", raising)
    with pytest.raises(Stopped):
        play(flat(tmp_path, method="fedavg", rounds=1))
    error = json.loads((tmp_path / "summary.json").read_text())["error"]
    assert error.isprintable() and "?[2J" in error and len(error) < 700


class Enormous(Tampering):
    """Client 1's weights are finite and overflow wherever they are used, in round 2."""

    def _changed(self, reply: Message) -> Message:
        if trained(reply, 2):
            changed_tensor(reply.content, lambda flat: flat.sign() * 3e38)
        return reply


@pytest.mark.parametrize("every", [1, 3])
def test_without_the_bound_a_broken_round_is_undone(every: int, tmp_path: Path) -> None:
    run = play(flat(tmp_path, method="fedavg", rounds=3, score__every=every, sanity=0), Enormous)
    (undone,) = run.journal[2]["undone"]
    assert "round 2: the loss of the server's model is" in undone["why"]
    assert undone["why"].endswith("client 1 with 4.2e+40 times the median change stood out")
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]


class Forgetful(Loopback):  # type: ignore[misc]
    """A SuperLink that died after it took round 2's messages: it has them when they come again."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        batch = list(messages)
        self.trained += any(m.metadata.message_type == "train" for m in batch)
        if self.trained == 2:
            raise grpc.RpcError("UNIQUE constraint failed: message_ins.message_id\n[SQL: INSERT]")
        pushed: Iterable[str] = super().push_messages(batch)
        return pushed

    trained = 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Enormous, ("3 of 4 replies are good, min-replies = 1 needs 4; client 1:", "sanity = 720")),
        (Forgetful, ("the SuperLink failed while it took the messages: UNIQUE",)),
    ],
)
def test_a_round_that_fails_is_not_kept_and_resuming_goes_on_before_it(
    kind: type[Loopback], said: tuple[str, ...], tmp_path: Path
) -> None:
    settings = flat(tmp_path / "run", method="fedavg", rounds=3)
    with pytest.raises(Stopped) as stopped:
        play(settings, kind)
    line = str(stopped.value)
    assert line.startswith("round 2: ") and "\n" not in line and "go on with --resume" in line
    assert all(part in line for part in said), line
    assert [entry["round"] for entry in TinyRun(tmp_path / "run").journal] == [0, 1]
    resumed = play({**settings, "resume": True})
    undisturbed = play({**settings, "out": str(tmp_path / "calm")})
    assert resumed.timeless == undisturbed.timeless and resumed.weights == undisturbed.weights
