"""Whole runs with sealed messages, over relays and registered clients that lie; in this process."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict

from client_app.participant import Participant
from common.exchange.seal.body import packed
from common.settings.config import Value
from deploy.flower.certificates import Certificates, make, revoke
from deploy.flower.messages import empty
from server_app.stopped import Stopped
from tests.support.adversary import note
from tests.support.battery import Swapping
from tests.support.keys import Keyed, altered
from tests.support.recorded_calls import record_calls
from tests.support.tiny import TinyRun, flat, play

CLIENTS = 3
Forge = Callable[["Once", RecordDict], RecordDict | Error | None]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("sealed") / "certs", [], CLIENTS)


def settings(out: Path, **changes: Any) -> dict[str, Value]:
    given = {"method": "fedavg", "clients": CLIENTS, "fleet": "mlp@0.25", "min_replies": 0.5}
    given |= {"data__samples": 60, "data__test_samples": 20, "train__epochs": 1}
    given |= {"profiles": "pi5,phone-low"}  # their times are those of a plain run
    return flat(out, **{**given, **changes})


class Relay(Keyed):
    """A SuperLink between a ServerApp and clients that have keys. Honest, unless a subclass is not.

    ``down`` and ``up`` may return another message, or none; each message is handed in as it came.
    """

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        super().__init__(config, keys)
        self.seen: list[Message] = []

    def down(self, message: Message) -> Message | None:
        return message

    def up(self, reply: Message, question: Message) -> Message | None:
        return reply

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            self.seen.append(message)
            passed = self.down(message)
            sent.append(message if passed is None else passed)
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = {name: empty(head) for name, head in self._heads.items()}
        replies = list(super().pull_messages(list(message_ids)))
        passed = (self.up(reply, asked[reply.metadata.reply_to_message_id]) for reply in replies)
        return [reply for reply in passed if reply is not None]


def sealed_run(
    out: Path, keys: Certificates, relay: Callable[..., Relay] = Relay, **changes: Any
) -> TinyRun:
    config = settings(out, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMOSAIC_TRUST", str(keys.folder))
        return play(config, relay(config, keys))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return play(settings(tmp_path_factory.mktemp("plain") / "out"))


def timeless(run: TinyRun) -> list[dict[str, Any]]:
    """The journal without what sealing and attacks may change: bytes and failures."""
    return [{**entry, "bytes": {}, "cost": None, "failures": []} for entry in run.timeless]


def same(run: TinyRun, plain: TinyRun) -> bool:
    return run.weights == plain.weights and timeless(run) == timeless(plain)


def failures(run: TinyRun) -> list[tuple[int, int, str]]:
    found = [failure for entry in run.journal for failure in entry["failures"]]
    return [(failure["k"], failure["round"], failure["reason"]) for failure in found]


def test_sealed_messages_give_the_same_bits(
    tmp_path: Path, keys: Certificates, plain: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays = record_calls(monkeypatch, Relay, "__init__", lambda _, relay, *given: relay)
    sealed = sealed_run(tmp_path / "out", keys)
    assert same(sealed, plain) and not failures(sealed)
    for message in relays[0].seen:
        hello = message.metadata.message_type == "query.hello"
        assert {*message.content} == {"seal", *(("arrays", "fields") if hello else ("sealed",))}
    before, after = plain.journal[1]["bytes"], sealed.journal[1]["bytes"]
    more = {way: after[way] - before[way] for way in ("down", "up", "arrays_down", "arrays_up")}
    assert 0 < more["up"] < 300 * CLIENTS and 0 < more["down"] < 3000 * CLIENTS
    assert more["arrays_down"] == more["arrays_up"] == 0


class Watchful(Relay):
    """Sees that no client gets a message while it trains; forges a reply to client 0's first job.

    Its second message finds no session, because the client has lost it.
    """

    busy: set[int]
    trained = 0

    def down(self, message: Message) -> Message | None:
        about = message.metadata
        again = about.dst_node_id == 1 and self.trained == 1  # after the forged reply
        assert about.dst_node_id not in self.busy or again, "a client that trains gets no message"
        if about.message_type == "train":
            self.busy.add(about.dst_node_id)
        return message

    def up(self, reply: Message, question: Message) -> Message | None:
        about = question.metadata
        if about.message_type != "train":
            return reply
        self.busy.discard(about.dst_node_id)
        if about.dst_node_id == 1:
            self.trained += 1
            if self.trained == 1:
                reply.content = altered(reply.content)
            if self.trained == 3:
                return Message(Error(0, "NoSession: none"), reply_to=question)
        return reply


@pytest.mark.parametrize("relay", [Relay, Watchful])
def test_sealed_asynchronous_rounds_give_the_same_bits(
    relay: type[Relay], tmp_path: Path, keys: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchful, "busy", set(), raising=False)
    more = {"mode": "buffered", "buffer__size": 1, "rounds": 6, "method": "fedper"}
    more |= {"score__clients_every": 2, "clock__jitter": 0.3}
    plain, sealed = (
        play(settings(tmp_path / "a", **more)),
        sealed_run(tmp_path / "b", keys, relay, **more),
    )
    assert same(sealed, plain)
    if relay is Watchful:
        forged = [why for k, _, why in failures(sealed) if k == 0 and "not authentic" in why]
        assert len(forged) == 1


class Once(Relay):
    """Forges the first training message of round 2 to client 0, or the reply to it.

    The forgery is the content that arrives instead, an error, or nothing.
    """

    def __init__(self, *given: Any, up: Forge | None = None, down: Forge | None = None) -> None:
        super().__init__(*given)
        self.forge = {"up": up, "down": down}
        self.struck = False
        self.of_round: dict[tuple[str, int], RecordDict] = {}

    def mine(self, about: Metadata) -> bool:
        before = self.struck
        self.struck |= about.dst_node_id == 1 and about.group_id == "2"
        return self.struck and not before

    def forged(self, way: str, message: Message, question: Message) -> Message | None:
        about, forge = question.metadata, self.forge[way]
        if forge is None or about.message_type != "train" or not message.has_content():
            return message
        self.of_round[about.group_id, about.dst_node_id] = message.content
        if not self.mine(about):
            return message
        found = forge(self, message.content)
        if isinstance(found, Error):
            return Message(found, reply_to=question)
        if found is None:
            return None
        if way == "up":
            message.content = found
            return message
        more = {"group_id": about.group_id, "ttl": about.ttl}
        return Message(found, about.dst_node_id, about.message_type, **more)

    def up(self, reply: Message, question: Message) -> Message | None:
        return self.forged("up", reply, question)

    def down(self, message: Message) -> Message | None:
        return self.forged("down", message, message)


def with_header(content: RecordDict, **changes: Any) -> RecordDict:
    about = {**content.config_records["seal"], **changes}
    return RecordDict({**content, "seal": ConfigRecord(about)})


def huge(_: Once, content: RecordDict) -> RecordDict:
    pieces = {"0": Array("uint8", (3_000_000,), "sealed", bytes(3_000_000))}
    return RecordDict({**content, "sealed": ArrayRecord(pieces)})


FORGES: dict[str, Forge] = {
    "tampered": lambda _, content: altered(content),
    "replayed": lambda relay, _: relay.of_round["1", 1],  # client 0's own
    "other's": lambda relay, _: relay.of_round["1", 2],  # client 1's, in client 0's name
    "reflected": lambda relay, _: relay.seen[-CLIENTS].content,  # the ServerApp's own message
    "misread": lambda _, content: with_header(content, wrapped="text"),
    "huge": huge,
    "unsealed reply": lambda *_: packed("protocol.Trained", b"", {}),
    "unsealed message": lambda *_: packed("protocol.Model", b"", {}),
    "error": lambda *_: Error(2, "ValueError: I give up"),
    "unavailable": lambda *_: Error(3, "Message Unavailable"),
}
FORGED = "client 0's reply is not authentic: the SuperLink or a registered node ("
ELSEWHERE = f"{FORGED}it was not sealed for this place by the other side)"
AT_THE_CLIENT = "NotAuthentic: it was not sealed for this place by the other side"
NOT_ITS_OWN = "ValueError: this node has a key, but the message is not sealed"


@pytest.mark.parametrize(
    ("way", "forge", "said"),
    [
        *(("up", forge, ELSEWHERE) for forge in ("tampered", "replayed", "other's", "reflected")),
        ("up", "unsealed reply", f"{FORGED}it is not sealed)"),
        ("up", "misread", f"{FORGED}its seal has no wrapped)"),
        ("up", "huge", "reply refused: it has 3.0 MB, wire.max-mb = 2"),
        ("up", "error", "ValueError: I give up"),
        ("up", "unavailable", "no reply within"),
        ("down", "tampered", AT_THE_CLIENT),
        ("down", "replayed", "ValueError: message 1 of the session came after message 1: it was"),
        ("down", "other's", "NoSession: this client does not have the session of the message"),
        ("down", "unsealed message", NOT_ITS_OWN),
    ],
)
def test_what_a_relay_or_a_registered_client_forges_costs_no_honest_reply(
    tmp_path: Path, keys: Certificates, plain: TinyRun, way: str, forge: str, said: str
) -> None:
    relay = partial(Once, **{way: FORGES[forge]})
    run = sealed_run(tmp_path / "out", keys, relay, wire__max_mb=2.0)
    ((k, t, reason),) = failures(run)
    assert (k, t) == (0, 2) and reason.startswith(said), reason
    assert same(run, plain)


def test_a_private_run_notes_a_forged_reply_without_its_client(
    tmp_path: Path, keys: Certificates
) -> None:
    pytest.importorskip("dp_accounting")
    relay = partial(Once, up=FORGES["tampered"])
    private = {
        "privacy__mode": "central",
        "privacy__clip": 0.01,
        "min_replies": 1.0,
        "profiles": "",
    }
    run = sealed_run(tmp_path / "out", keys, relay, **private)
    note = "a reply is not authentic; a missing reply counts as a zero update"
    assert run.journal[2]["notes"] == [note] and "failures" not in run.journal[2]


class Revoking(Relay):
    """The operator revokes client 1's key while the clients work on round 2."""

    keys: Certificates

    def down(self, message: Message) -> Message | None:
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            revoke(self.keys.revoked, [self.keys.public(1)])
        return None


@pytest.mark.parametrize("rounds", [3, pytest.param(12, marks=pytest.mark.hostile)])
def test_a_key_that_is_revoked_during_a_run_ends_its_clients_part(
    rounds: int, tmp_path: Path
) -> None:
    own = make(tmp_path / "certs", [], CLIENTS)
    relay = type("Own", (Revoking,), {"keys": own})
    run = sealed_run(tmp_path / "out", own, relay, rounds=rounds)
    replied, without = [entry["replied"] for entry in run.journal[1:]], range(2, rounds + 1)
    assert replied == [[0, 1, 2], *([0, 2] for _ in without)]
    why = f"reply refused: its key 1.pub is revoked, see {own.revoked}"
    assert {*failures(run)} == {(1, t, why) for t in without}
    told = why.replace(f"{tmp_path}/", "")
    note(f"client 1's key is revoked in round 2 of {rounds}", "completed without client 1", told)


class Forgetful(Once):
    """Client 0 loses its session after round 1, as with a new disk."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        if any(message.metadata.group_id == "2" for message in sent) and not self.struck:
            self.struck = True
            (folder,) = Path(str(self._run_config["state-dir"])).iterdir()
            (folder / "0" / "session.json").unlink()
        return super().push_messages(sent)


def test_a_client_that_lost_its_session_gets_a_new_hello_in_the_same_round(
    tmp_path: Path, keys: Certificates, plain: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays = record_calls(monkeypatch, Relay, "__init__", lambda _, relay, *given: relay)
    run = sealed_run(tmp_path / "out", keys, Forgetful)
    ((k, t, reason),) = failures(run)
    assert (k, t) == (0, 2) and reason.startswith("NoSession: this client does not have"), reason
    hellos = [m.metadata for m in relays[0].seen if m.metadata.message_type == "query.hello"]
    assert [about.dst_node_id for about in hellos] == [1, 2, 3, 1]
    assert same(run, plain)


class Returning(Swapping, Relay):
    """After round 1 client 0 is another node, on a new machine without its session."""

    leaving = 1

    def swap(self) -> None:
        state = Path(str(self._run_config["state-dir"])).with_name("new")
        self.changes = {"state-dir": str(state)}
        super().swap()


@pytest.mark.parametrize("rebind", [True, False])
def test_a_client_that_returns_as_another_node_gets_a_session_as_rebind_says(
    tmp_path: Path, keys: Certificates, plain: TinyRun, rebind: bool
) -> None:
    run = sealed_run(tmp_path / "out", keys, Returning, rebind=rebind)
    second = [0, 1, 2] if rebind else [1, 2]
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 1, 2], second]
    if rebind:
        assert not failures(run) and run.weights == plain.weights
    else:
        assert any("it belongs to node 1 (rebind = false)" in why for _, _, why in failures(run))


class Tireless(Once):
    """Whatever client 0 answers in training is forged."""

    def mine(self, about: Metadata) -> bool:
        return about.dst_node_id == 1


def test_a_tireless_relay_costs_the_client_not_the_run(tmp_path: Path, keys: Certificates) -> None:
    run = sealed_run(tmp_path / "out", keys, partial(Tireless, up=FORGES["tampered"]))
    assert [entry["replied"] for entry in run.journal[1:]] == [[1, 2]] * 2
    assert [(k, t) for k, t, _ in failures(run)] == [(0, 1), (0, 1), (0, 2), (0, 2)]
    assert {reason for _, _, reason in failures(run)} == {ELSEWHERE}


def test_a_reply_that_is_dropped_is_waited_for_once(tmp_path: Path, keys: Certificates) -> None:
    run = sealed_run(tmp_path / "out", keys, partial(Once, up=lambda *_: None), timeout=2.0)
    assert failures(run) == [(0, 2, "no reply within 2 s")]
    assert run.journal[2]["replied"] == [1, 2]


class AtCensus(Relay):
    """The first answer to a hello of client 0 is changed on its way."""

    struck = False

    def up(self, reply: Message, question: Message) -> Message | None:
        about = question.metadata
        if about.message_type == "query.hello" and about.dst_node_id == 1 and not self.struck:
            self.struck = True
            reply.content = with_header(reply.content, k=1)
        return reply


class Impostor(Relay):
    """Client 1's key, under client 0's number."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._nodes[1]["key"] = self._nodes[2]["key"]


class Keyless(Relay):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        del self._nodes[1]["key"], self._nodes[1]["ca"]


class Changing(Relay):
    """Client 0 gets another run config than the ServerApp."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        honest, names = self._run_config, []
        for message in messages:
            first = message.metadata.dst_node_id == 1
            self._run_config = {**honest, "train.lr": 9.0} if first else honest
            names += super().push_messages([message])
        self._run_config = honest
        return names


def test_a_forged_answer_to_the_census_is_asked_for_again(
    tmp_path: Path, keys: Certificates, plain: TinyRun
) -> None:
    run = sealed_run(tmp_path / "out", keys, AtCensus)
    assert same(run, plain)


@pytest.mark.parametrize(
    ("relay", "said"),
    [
        (Impostor, "node 1 answered: the answer is not authentic: the SuperLink or a registered"),
        (Keyless, "node 1 answered: client 0: ValueError: the ServerApp seals its messages"),
        (Changing, "node 1 answered: client 0: ValueError: the received run config differs from"),
    ],
)
def test_a_census_that_cannot_be_believed_stops_the_run_in_a_line(
    tmp_path: Path, keys: Certificates, relay: type[Relay], said: str
) -> None:
    with pytest.raises(Stopped) as stopped:
        sealed_run(tmp_path / "out", keys, relay)
    assert str(stopped.value).startswith(f"census: {said}")


def test_a_server_app_without_a_key_stops_at_the_census(tmp_path: Path, keys: Certificates) -> None:
    config = settings(tmp_path / "out")
    with pytest.raises(Stopped, match="census: node 1 answered: client 0: .*FEDMOSAIC_TRUST"):
        play(config, Relay(config, keys))


@pytest.mark.full
def test_a_resumed_run_begins_new_sessions(tmp_path: Path, keys: Certificates) -> None:
    straight = sealed_run(tmp_path / "straight", keys)
    sealed_run(tmp_path / "out", keys, rounds=1)
    resumed = sealed_run(tmp_path / "out", keys, rounds=2, resume=True)
    assert resumed.weights == straight.weights


def test_a_round_that_is_undone_goes_on_sealed(
    tmp_path: Path, keys: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Participant.train

    def lying(self: Participant, t: int, parameters: Any, *given: Any, **named: Any) -> Any:
        own = list(parameters)
        metrics = honest(self, t, own, *given, **named)
        if self.k == 1:
            with torch.no_grad():
                own[0].view(-1)[3] = 3e38
        return metrics

    monkeypatch.setattr(Participant, "train", lying)
    relays = record_calls(monkeypatch, Relay, "__init__", lambda _, relay, *given: relay)
    sealed = sealed_run(tmp_path / "out", keys, sanity=0)
    (undone,) = sealed.journal[1]["undone"]
    assert undone["suspects"] == [1] and undone["round"] == 1
    assert [entry["replied"] for entry in sealed.journal[1:]] == [[0, 2]] * 2
    numbers: dict[int, list[object]] = {}
    for message in relays[0].seen:
        if message.metadata.message_type != "query.hello":
            assert set(message.content) == {"sealed", "seal"}
            n = message.content.config_records["seal"]["n"]
            numbers.setdefault(message.metadata.dst_node_id, []).append(n)
    for each in numbers.values():
        assert each == [*range(1, len(each) + 1)], "no message of the repeated round is an old one"
    plain = play(settings(tmp_path / "plain", sanity=0))
    assert same(sealed, plain)
