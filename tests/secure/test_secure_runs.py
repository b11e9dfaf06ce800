"""Whole runs with secure sums: bits, drop-outs, resumed runs, members, seals and local noise."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flwr.app import Message, RecordDict

from common import methods
from common.exchange.protocol import MaskedReply, ModelRequest
from common.exchange.secure import sums
from deploy.flower.certificates import Certificates, make
from deploy.run.loopback import Loopback
from server_app.secure.rounds import ATTEMPTS
from server_app.stopped import Stopped
from tests.support.battery import Crash, Crashing, config, tiers
from tests.support.keys import Keyed
from tests.support.tiny import TinyRun, flat, listed, play

METHODS = [name for name in methods.names() if "secure" in methods.options(name).uses]
USUAL: dict[str, Any] = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 4}
SECURE: dict[str, Any] = {**USUAL, "secure__mode": "on"}
MAJORITY = {"secure__threshold": "majority", "min_replies": 0.75}


def difference(a: TinyRun, b: TinyRun) -> float:
    """The largest difference of floating-point weights."""
    both = [(a.model[name], b.model[name]) for name in a.model if a.model[name].is_floating_point()]
    return max(float((x - y).abs().max()) for x, y in both)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return play(flat(tmp_path_factory.mktemp("secure") / "out", **SECURE))


def test_a_secure_run_is_within_the_step_of_the_plain_mean(tmp_path: Path, secure: TinyRun) -> None:
    one = {"rounds": 1}
    plain = play(flat(tmp_path / "plain", **{**USUAL, **one}))
    masked = play(flat(tmp_path / "secure", **{**SECURE, **one}))
    assert 0 < difference(plain, masked) <= sums.step(1.0)
    assert [e.get("clipped") for e in secure.journal] == [None, 0.0, 0.0]
    assert [e["accuracy"] for e in masked.journal] == [e["accuracy"] for e in plain.journal]
    notes = secure.journal[0]["notes"]
    assert "sanity is off" in notes[0] and "4 of 4 clients have no roster.pub" in notes[1]
    assert not secure.journal[1].get("magnitudes")
    assert [*secure.journal[1]["client_metrics"]["0"]] == ["steps"], "costs alone are in clear"


def test_other_keys_change_no_bit(tmp_path: Path, secure: TinyRun) -> None:
    again = play(flat(tmp_path / "again", **SECURE))
    assert again.timeless == secure.timeless and again.weights == secure.weights


@pytest.mark.full
def test_workers_change_no_bit(tmp_path: Path, secure: TinyRun) -> None:
    settings = flat(tmp_path / "workers", **SECURE)
    pooled = play(settings, Loopback(4, settings, workers=2))
    assert pooled.timeless == secure.timeless and pooled.weights == secure.weights


@pytest.mark.parametrize("method", tiers(METHODS, {"fedavg", "rolora", "lg-fedavg"}))
def test_every_method_has_the_same_results(method: str, tmp_path: Path) -> None:
    same = {"clients": 4, "rounds": 2, "profiles": "", "average__across": "none"}
    plain = play(config(method, tmp_path / "plain", **same))
    on = {"secure__mode": "on", "secure__clip": 16.0}  # for the statistics of BatchNorm
    masked = play(config(method, tmp_path / "secure", **on, **same))
    if method == "dafl":  # the student, the run's model, magnifies every rounding
        teachers = [[e["accuracies"]["teacher"] for e in r.journal[1:]] for r in (plain, masked)]
        assert teachers[0] == teachers[1]
    elif plain.model:
        assert difference(plain, masked) < 1e-3
    assert [e.get("failures", []) for e in masked.journal] == [[], [], []]
    assert all(entry["clipped"] < 0.2 for entry in masked.journal[1:])


class Listening(Loopback):  # type: ignore[misc]
    """Loopback that keeps what the server receives in training."""

    heard: ClassVar[list[MaskedReply]] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        for reply in replies:
            if reply.metadata.message_type == "train" and reply.has_content():
                self.heard.append(MaskedReply.unpack(reply.content))
        return replies


def test_the_server_receives_noise_and_keeps_no_key(tmp_path: Path) -> None:
    Listening.heard.clear()
    run = play(flat(tmp_path / "out", **SECURE, rounds=1), Listening)
    words = [reply.y.double() for reply in Listening.heard]
    assert len(words) == 4
    for y in words:  # uniform on 32 bits: mean 0, deviation 2^32 / √12
        assert abs(float(y.mean())) < 2**32 / 12**0.5 / len(y) ** 0.5 * 5
        assert float(y.std()) == pytest.approx(2**32 / 12**0.5, rel=0.1)
    states = [path for path in (run.folder / "state").rglob("secure/*.json")]
    own = [path.read_text() for path in states]
    assert len(own) == 4
    secret = [text.split('"key": "')[1][:64] for text in own]
    for path in run.folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(run.folder / "state"):
            content = path.read_bytes()
            assert not any(
                key.encode() in content or bytes.fromhex(key) in content for key in secret
            )


class Dropping(Loopback):  # type: ignore[misc]
    """Loopback on which replies get lost: ``lost`` has (round, attempt, message type, client)."""

    lost: ClassVar[set[tuple[int, int, str, int]]] = set()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.attempts: dict[int, int] = {}
        self.asked: dict[str, Message] = {}
        self.sent: list[tuple[int, int, str, list[int]]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        about = sent[0].metadata
        t = int(about.group_id or 0)
        if about.message_type == "train":
            self.attempts[t] = self.attempts.get(t, 0) + 1
        ks = sorted(message.metadata.dst_node_id - 1 for message in sent)
        self.sent.append((t, self.attempts.get(t, 0), about.message_type, ks))
        names = list(super().push_messages(sent))
        self.asked |= dict(zip(names, sent, strict=True))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        passed = []
        for reply in super().pull_messages(list(message_ids)):
            about = self.asked[reply.metadata.reply_to_message_id].metadata
            t, k = int(about.group_id or 0), about.dst_node_id - 1
            if (t, self.attempts.get(t, 0), about.message_type, k) in self.lost:
                reply.content = RecordDict()
            passed.append(reply)
        return passed


def dropping(out: Path, lost: set[tuple[int, int, str, int]], **changes: Any) -> Any:
    settings = flat(out, **{**SECURE, **MAJORITY, **changes})
    kind = type("Lossy", (Dropping,), {"lost": lost})
    grid = kind(int(settings["clients"]), settings, workers=0)
    return grid, settings


def test_drop_outs_cost_a_client_or_an_attempt(tmp_path: Path) -> None:
    lost = {
        (1, 1, "train", 2),  # before the upload
        (2, 1, "train.second", 1),  # after it
        *((3, 1, "train", k) for k in (0, 1)),  # below the threshold
        (4, 1, "train", 3),  # before, and another one after
        (4, 1, "train.second", 0),
    }
    grid, settings = dropping(tmp_path, lost, rounds=4)
    run = play(settings, grid)
    assert [entry["replied"] for entry in run.journal[1:]] == [
        *([0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]),
        [0, 1, 2, 3],
    ]
    failed = [[f["k"] for f in entry["failures"]] for entry in run.journal[1:]]
    assert failed == [[2], [1], [], []]
    assert grid.attempts == {1: 1, 2: 1, 3: 2, 4: 2}
    third, fourth = (entry["notes"] for entry in run.journal[3:])
    assert third == [
        "attempt 1 at the secure sum failed: 2 updates have arrived, the sum needs 3; client 0: "
        "reply refused: not a protocol.Masked payload: records []"
    ]
    assert fourth[0].endswith("2 of 3 clients helped to remove masks, of 3")


def test_the_next_attempt_is_among_those_that_answered(tmp_path: Path) -> None:
    lost = {(1, 1, "train", 3), (1, 1, "train.second", 0), (1, 2, "train", 0), (1, 2, "train", 3)}
    grid, settings = dropping(tmp_path, lost, clients=5, rounds=1, min_replies=0.6)
    run = play(settings, grid)
    sent = [(attempt, kind, ks) for t, attempt, kind, ks in grid.sent if t == 1]
    assert sent[:4] == [
        (1, "train", [0, 1, 2, 3, 4]),
        (1, "train.second", [0, 1, 2, 4]),
        (2, "train", [1, 2, 4]),
        (2, "train.second", [1, 2, 4]),
    ]
    assert run.journal[1]["replied"] == [1, 2, 4] and not run.journal[1]["failures"]


def test_too_many_drop_outs_stop_the_run_which_can_resume(tmp_path: Path, secure: TinyRun) -> None:
    lost = {(2, n, "train", k) for n in range(1, ATTEMPTS + 1) for k in (1, 2)}
    grid, settings = dropping(tmp_path, lost, **{k: v for k, v in SECURE.items()})
    with pytest.raises(Stopped, match=f"round 2: the secure sum failed in {ATTEMPTS} attempts"):
        play(settings, grid)
    resumed = play({**settings, "resume": True})
    assert resumed.weights == secure.weights


def test_a_resumed_run_has_the_same_bits(tmp_path: Path, secure: TinyRun) -> None:
    settings = flat(tmp_path / "out", **SECURE)
    with pytest.raises(Crash):
        play(settings, Crashing)
    resumed = play({**settings, "resume": True})
    assert resumed.timeless == secure.timeless and resumed.weights == secure.weights
    back = play(flat(tmp_path / "out", **SECURE, resume=True, from_round=1))
    assert back.weights == secure.weights, "round 2 is repeated with a newer counter"


def test_clients_leave_and_join(tmp_path: Path) -> None:
    events = """event = [
        {round = 2, client = 1, kind = "left"},
        {round = 3, client = 1, kind = "returned"},
    ]"""
    changes = {"membership": listed(tmp_path, events), "min_clients": 3, "rounds": 3}
    masked = play(flat(tmp_path / "secure", **SECURE, **changes))
    plain = play(flat(tmp_path / "plain", **USUAL, **changes))
    assert [entry["replied"] for entry in masked.journal[1:]] == [
        *([0, 1, 2, 3], [0, 2, 3]),
        [0, 1, 2, 3],
    ]
    assert difference(masked, plain) < 1e-5


def test_a_part_of_the_clients_is_selected(tmp_path: Path) -> None:
    run = play(flat(tmp_path, **{**SECURE, "clients": 6, "per_round": 3, "rounds": 3}))
    assert all(entry["replied"] == entry["selected"] for entry in run.journal[1:])


def test_local_noise_is_added_before_the_masks(tmp_path: Path) -> None:
    noise = {"privacy__mode": "local", "privacy__noise_multiplier": 0.1, "privacy__clip": 0.5}
    grid, settings = dropping(
        tmp_path / "run",
        {(1, 1, "train", k) for k in (0, 1)},
        **{**noise, "min_replies": 1.0, "rounds": 2, "secure__clip": 4.0},
    )
    run = play(settings, grid)
    assert grid.attempts == {1: 2, 2: 1}, "the second attempt has the stored update, with new masks"
    assert run.journal[2]["privacy"]["epsilon"] > 0 and "replied" not in run.journal[1]
    assert run.journal[1]["clipped"] < 0.01


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("keys") / "certs", [], 4)


class Registered(Keyed):
    """Loopback whose clients have keys and a roster."""

    def __init__(self, settings: dict[str, Any], keys: Certificates) -> None:
        super().__init__(settings, keys)
        for node in self._nodes.values():
            node["roster"] = str(keys.roster)


def test_sealed_runs_with_a_roster_have_the_same_bits(
    tmp_path: Path, keys: Certificates, secure: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = flat(tmp_path, **SECURE)
    monkeypatch.setenv("FEDMOSAIC_TRUST", str(keys.folder))
    sealed = play(settings, Registered(settings, keys))
    assert sealed.weights == secure.weights
    assert len(sealed.journal[0]["notes"]) == 1, "no client trusts the server to relay keys"


class Exposed(Loopback):  # type: ignore[misc]
    """Loopback whose server asks for an update without an attempt."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            if message.metadata.message_type == "train":
                asked = ModelRequest.unpack(message.content)
                message.content = asked.model_copy(update={"secure": None}).pack()
        return super().push_messages(sent)


def test_a_client_sends_no_update_without_masks(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="the request has no valid attempt of a secure sum"):
        play(flat(tmp_path, **SECURE), Exposed)


def test_impossible_rosters_are_refused_at_the_census(tmp_path: Path) -> None:
    settings = flat(tmp_path, **SECURE, min_replies=0.5)
    with pytest.raises(ValueError, match=r"min-replies = 0.5 is below the 4 of 4 clients"):
        play(settings)
