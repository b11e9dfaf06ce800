"""One offer, one answer, one message: every field altered, and who may say what."""

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

import client_app.seal
from client_app.app import answer
from client_app.seal import SealedMessage, open_message
from common.exchange import protocol
from common.exchange.protocol import CensusRequest
from common.exchange.seal import body, files, session
from common.exchange.seal.body import NotAuthentic
from common.exchange.seal.session import Keys, NoSession, Place
from common.files import Damaged
from common.parse import parse
from deploy.flower.certificates import Certificates, make
from server_app.messaging.sealed import SealedChannel, Trust
from tests.support.own_modules import importing_from, module
from tests.support.tiny import flat

HERE = Path(__file__).parent
RUN, NODE = "run", 7
HELLO = CensusRequest(clients=2).stamped(RUN, 0).pack()
PAYLOAD = body.packed("protocol.Trained", b"skeleton", {"float32": b"1234", "int64": b""})
PLACE = Place(RUN, 3, 1, "train", 5, b"r" * 16)
KEYS = Keys(b"t" * 32, b"s" * 32, 5)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("session") / "certs", [], 2)


def context(keys: Certificates, k: int = 0, **changes: str) -> Context:
    node = {"partition-id": k, "key": str(keys.key(k)), "ca": str(keys.ca)}
    node |= {"state-dir": str(keys.folder.parent / "state"), **changes}
    return Context(1, NODE, node, RecordDict(), {"rounds": 2})


def letter(content: RecordDict, kind: str, of: Context) -> SealedMessage:
    found = open_message(Message(content, NODE, kind), of)
    assert isinstance(found, SealedMessage)
    return found


def server(keys: Certificates) -> SealedChannel:
    return SealedChannel(parse(flat(keys.folder)), RUN, Trust(keys.folder), {"rounds": 2})


def hello(seal: SealedChannel, of: Context, node: int = 1) -> SealedMessage:
    """A client receives the census request of its node."""
    return letter(seal.census_requests(HELLO, [node])[node], "query.hello", of)


def greeted(seal: SealedChannel, of: Context, node: int = 1) -> RecordDict:
    """The answer of a client that took the census request; the ServerApp took it, too."""
    asked = hello(seal, of, node)
    asked.admit()
    reply = asked.answer(PAYLOAD)
    seal.open_census_reply(node, reply)
    return reply


def met(keys: Certificates, **changes: str) -> SealedChannel:
    """A ServerApp that has met both clients."""
    seal = server(keys)
    for k in range(2):
        greeted(seal, context(keys, k, **changes), k)
        seal.check_client(k, k)
    return seal


def train(seal: SealedChannel) -> RecordDict:
    """Client 0's next message."""
    return seal.wrap(PAYLOAD, 1, "train")(0)


def message(seal: SealedChannel, of: Context) -> SealedMessage:
    return letter(train(seal), "train", of)


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """The node config of clients whose state lies in ``tmp_path``."""
    return {"state-dir": str(tmp_path)}


@pytest.fixture
def of(keys: Certificates, state: dict[str, str]) -> Context:
    """Client 0, whose state lies in ``tmp_path``."""
    return context(keys, **state)


def same(a: RecordDict, b: RecordDict) -> bool:
    return body.plain(a) == body.plain(b)


def test_a_message_and_its_answer_arrive_as_they_were(keys: Certificates) -> None:
    seal = met(keys)
    asked = message(seal, context(keys))
    assert same(asked.content, PAYLOAD)
    assert same(seal.open(0, asked.answer(PAYLOAD)), PAYLOAD)
    failure = asked.failure("ValueError: no")
    assert failure is not None
    assert session.failed(seal.open(0, failure)) == "ValueError: no"
    assert session.failed(PAYLOAD) is None


@pytest.mark.parametrize("field", ["experiment", "t", "k", "kind", "n", "request"])
def test_a_seal_holds_for_one_place_and_direction(field: str) -> None:
    sealed = session.seal(body.encrypt(PAYLOAD), KEYS, PLACE, "down", {})
    assert same(session.unseal(sealed, KEYS, PLACE, "down"), PAYLOAD)
    value = getattr(PLACE, field)
    other = replace(PLACE, **{field: value + 1 if isinstance(value, int) else value + value[:1]})
    for keys, place, way in (
        (KEYS, other, "down"),
        (KEYS, PLACE, "up"),
        (replace(KEYS, transcript=b"x" * 32), PLACE, "down"),
        (replace(KEYS, secret=b"x" * 32), PLACE, "down"),
        (KEYS.at(6), PLACE, "down"),
    ):
        with pytest.raises(NotAuthentic, match="it was not sealed for this place"):
            session.unseal(sealed, keys, place, way)


def damaged(content: RecordDict) -> Iterator[tuple[str, RecordDict]]:
    """One bit of each part of a sealed message, parts that are missing, renamed, too many."""
    pieces, about = dict(content.array_records["sealed"]), content.config_records["seal"]
    for name, piece in pieces.items():
        if piece.data:
            flipped = bytes([piece.data[0] ^ 128]) + piece.data[1:]
            changed = {**pieces, name: Array("uint8", (len(flipped),), "sealed", flipped)}
            yield f"piece {name}", RecordDict({**content, "sealed": ArrayRecord(changed)})
        fewer = {key: value for key, value in pieces.items() if key != name}
        yield f"no {name}", RecordDict({**content, "sealed": ArrayRecord(fewer)})
    more = {**pieces, str(len(pieces)): Array("uint8", (0,), "sealed", b"")}
    yield "one more", RecordDict({**content, "sealed": ArrayRecord(more)})
    swapped = {**pieces, "1": pieces["2"], "2": pieces["1"]}
    yield "swapped", RecordDict({**content, "sealed": ArrayRecord(swapped)})
    many = {str(i): Array("uint8", (0,), "sealed", b"") for i in range(body.MAX_PIECES + 1)}
    yield "many", RecordDict({**content, "sealed": ArrayRecord(many)})
    for name in ("wrapped", "tag"):
        value = about[name]
        assert isinstance(value, bytes)
        for other in (bytes([value[0] ^ 1]) + value[1:], b"", value[:-1], "text", 7):
            header = ConfigRecord({**about, name: other})
            yield f"{name} {other!r}", RecordDict({**content, "seal": header})
    yield "no seal", RecordDict({"sealed": content["sealed"]})
    yield "no body", RecordDict({"seal": content["seal"]})
    yield "nothing", RecordDict({})


def test_whatever_part_of_a_message_is_damaged_it_is_not_authentic() -> None:
    sealed = session.seal(body.encrypt(PAYLOAD), KEYS, PLACE, "up", {})
    for what, content in damaged(sealed):
        with pytest.raises(NotAuthentic):
            session.unseal(content, KEYS, PLACE, "up")
            pytest.fail(what)


def test_a_client_that_knows_the_key_of_a_body_cannot_make_another_body_for_it() -> None:
    honest = body.encrypt(PAYLOAD)
    sealed = session.seal(honest, KEYS, PLACE, "down", {})
    forged = body.encrypt(body.packed("protocol.Model", b"forged", {}), lambda _: honest.key)
    about = ConfigRecord({**sealed.config_records["seal"], "tag": forged.tag})
    with pytest.raises(NotAuthentic, match="it was not sealed for this place"):
        session.unseal(RecordDict({"sealed": forged.pieces, "seal": about}), KEYS, PLACE, "down")


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", b"[" * 10**5, b'{"kind":"a","arrays":["b"]}'])
def test_what_a_client_seals_and_should_not_have_is_its_own_fault(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(body, "plain", lambda _: [head, b"skeleton"])
    sealed = session.seal(body.encrypt(PAYLOAD), KEYS, PLACE, "up", {})
    with pytest.raises(ValueError, match="its sealed content is malformed") as refused:
        session.unseal(sealed, KEYS, PLACE, "up")
    assert not isinstance(refused.value, NotAuthentic)


def test_no_key_and_nonce_are_used_twice() -> None:
    one, two = (body.encrypt(PAYLOAD) for _ in range(2))
    assert one.key != two.key and one.pieces["2"].data != two.pieces["2"].data
    seals = [session.seal(one, KEYS, PLACE, "down", {}) for _ in range(100)]
    assert len({each.config_records["seal"]["wrapped"][:12] for each in seals}) == 100


def test_another_implementation_opens_it() -> None:
    """AES-GCM in one go, over the pieces as one text; the wrap by its definition."""
    sealed = session.seal(body.encrypt(PAYLOAD), KEYS, PLACE, "up", {})
    about, pieces = sealed.config_records["seal"], sealed.array_records["sealed"]
    whole = b"".join(pieces[str(i)].data for i in range(len(pieces)))
    said = {
        **{"experiment": RUN, "t": 3, "k": 1, "kind": "train", "n": 5},
        **{"request": PLACE.request.hex(), "way": "up", "name": "fedmosaic seal 2"},
        "transcript": KEYS.transcript.hex(),
        "body": body.digest(pieces, about["tag"]).hex(),
    }
    bound = json.dumps(said, sort_keys=True).encode()
    key = AESGCM(KEYS.key("up")).decrypt(about["wrapped"][:12], about["wrapped"][12:], bound)
    plain = AESGCM(key).decrypt(bytes(12), whole + about["tag"], b"")
    assert plain == b"".join(body.plain(PAYLOAD))


def test_a_share_of_low_order_is_refused() -> None:
    with pytest.raises(NotAuthentic, match="its X25519 share is invalid"):
        session.agree(X25519PrivateKey.generate(), bytes(32), b"", 0, bytes(32))


def test_who_answers_a_hello_must_have_the_key_of_the_claimed_client(keys: Certificates) -> None:
    seal = server(keys)
    earlier = seal.census_requests(HELLO, [1])[1]
    hellos = seal.census_requests(HELLO, [1, 2])

    def answered(content: RecordDict, of: Context) -> RecordDict:
        return letter(content, "query.hello", of).answer(PAYLOAD)

    honest = answered(hellos[1], context(keys))
    replies = {
        "signature of its accept": answered(hellos[1], context(keys, 0, key=str(keys.key(1)))),
        "signature of its accept is": answered(hellos[2], context(keys)),
        "the signature of its accept": answered(earlier, context(keys)),
        "it claims to be client 9": with_header(honest, k=9),
        "signature of its": with_header(honest, k=1),
        "signature of": with_header(honest, share=bytes(32)),
        "signature": with_header(honest, signature=b"none"),
        "its seal has no share": with_header(honest, share="text"),
        "it is not sealed": PAYLOAD,
    }
    for said, reply in replies.items():
        with pytest.raises(NotAuthentic, match=said):
            seal.open_census_reply(1, reply)
            pytest.fail(said)
    seal.open_census_reply(1, honest)
    seal.check_client(1, 0)
    session = seal._sessions[0]
    for again in (honest, *replies.values()):  # a reply that comes twice, and one that is forged
        with pytest.raises(NotAuthentic):
            seal.open_census_reply(1, again)
    with pytest.raises(ValueError, match="it says that it is client 0, with client None's key"):
        seal.check_client(2, 0)
    assert seal._sessions == {0: session}, "a second reply changes no session"


def with_header(content: RecordDict, **changes: Any) -> RecordDict:
    about = {**content.config_records["seal"], **changes}
    return RecordDict({**content, "seal": ConfigRecord(about)})


def test_a_client_trusts_its_own_authority_alone(keys: Certificates, tmp_path: Path) -> None:
    honest = server(keys).census_requests(HELLO, [1])[1]
    others = server(make(tmp_path / "others", [], 1)).census_requests(HELLO, [1])[1]
    offer = json.loads(honest.config_records["seal"]["offer"])
    other_offer = json.dumps({**offer, "experiment": "other"}).encode()
    other_request = CensusRequest(clients=3).stamped(RUN, 0).pack()
    cases = {
        "the signature of its offer is invalid": with_header(honest, signature=b"none"),
        "signature of its offer": with_header(honest, offer=other_offer),
        "its certificate is not one of this node's authority": others,
        "its offer is malformed": with_header(honest, offer=b"[]"),
        "its seal has no offer": with_header(honest, offer="text"),
        "the census request differs from the one that the ServerApp signed": RecordDict(
            {**honest, **other_request}
        ),
    }
    for said, content in cases.items():
        with pytest.raises(NotAuthentic, match=said):
            letter(content, "query.hello", context(keys))


def test_the_certificate_of_tls_and_an_old_one_are_not_a_server_apps(keys: Certificates) -> None:
    authority = files.read_certificate(keys.ca)

    def der(path: Path) -> bytes:
        return files.read_certificate(path).public_bytes(Encoding.DER)

    files.server_app_key(der(keys.app), authority)
    with pytest.raises(ValueError, match="its certificate is not a ServerApp's"):
        files.server_app_key(der(keys.server), authority)
    with pytest.raises(ValueError, match="its certificate is not one of this node's authority"):
        files.server_app_key(der(keys.ca), authority)
    was, now = files.read_certificate(keys.app), datetime.now(UTC)
    key, days = files.pem_key(keys.app_key).public_key(), [now - timedelta(days=n) for n in (2, 1)]
    names = was.issuer, was.subject, key, was.serial_number
    builder = x509.CertificateBuilder(*names, *days, [*was.extensions])
    old = builder.sign(files.pem_key(keys.ca_key), hashes.SHA384())
    with pytest.raises(ValueError, match="a certificate has expired"):
        files.server_app_key(old.public_bytes(Encoding.DER), authority)


def test_a_client_takes_each_message_once_and_no_older_session(
    keys: Certificates, tmp_path: Path, state: dict[str, str], of: Context
) -> None:
    first = met(keys, **state)
    contents = [train(first) for _ in range(3)]
    one, two = (letter(content, "train", of) for content in contents[:2])
    two.admit()
    with pytest.raises(ValueError, match="message 1 of the session came after message 2"):
        one.admit()
    for content in contents[:2]:
        with pytest.raises(ValueError, match="message [12] of the session came after message 2"):
            letter(content, "train", of)
    second = met(keys, **state)
    with pytest.raises(NoSession):
        letter(contents[2], "train", of)
    message(second, of).admit()
    assert (tmp_path / RUN / "0" / "session.json").stat().st_mode & 0o777 == 0o600


def test_experiments_on_one_node_have_own_sessions(keys: Certificates, of: Context) -> None:
    seals = [server(keys) for _ in range(2)]
    seals[1].experiment = "other"
    for seal in seals:
        request = CensusRequest(clients=2).stamped(seal.experiment, 0).pack()
        asked = letter(seal.census_requests(request, [1])[1], "query.hello", of)
        asked.admit()
        seal.open_census_reply(1, asked.answer(PAYLOAD))
    for seal in (*seals, *seals):
        received = message(seal, of)
        received.check_settings({"rounds": 2})
        received.check_experiment(seal.experiment)
        received.admit()
        assert same(seal.open(0, received.answer(PAYLOAD)), PAYLOAD)


def test_hellos_have_new_shares_and_messages_new_keys(keys: Certificates, of: Context) -> None:
    seal, shares, secrets = server(keys), [], []
    for _ in range(2):
        asked = hello(seal, of)
        asked.admit()
        reply = asked.answer(PAYLOAD)
        seal.open_census_reply(1, reply)
        offer = json.loads(asked.hello.text) if asked.hello else {}
        shares += [offer["share"], reply.config_records["seal"]["share"].hex()]
        for _ in range(2):
            received = message(seal, of)
            received.admit()
            secrets += [received.current.keys.secret.hex()]
    assert len({*shares, *secrets}) == 8


def test_keys_and_files_that_are_stolen_later_open_no_earlier_message(
    keys: Certificates, tmp_path: Path, state: dict[str, str], of: Context
) -> None:
    """The thief has both signing keys, all recorded bytes, and the state of both sides."""
    seal, recorded = met(keys, **state), []
    for _ in range(3):
        down = train(seal)
        received = letter(down, "train", of)
        received.admit()
        up = received.answer(PAYLOAD)
        assert same(seal.open(0, up), PAYLOAD)
        recorded += [(down, received.place, "down"), (up, received.place, "up")]
    seal._requests.clear()  # as after each exchange
    stolen = client_app.seal.ClientSession.read(tmp_path / RUN / "0" / "session.json")
    assert stolen is not None and stolen.keys.n == 4
    assert not seal._censuses, "the private half of the ServerApp's share is gone"
    for keys_of in (stolen.keys, seal._sessions[0].keys):
        for content, place, way in recorded:
            for step in range(5):
                with pytest.raises(NotAuthentic):
                    session.unseal(content, keys_of.at(keys_of.n + step), place, way)
    with pytest.raises(ValueError, match="message 1 of the session came after message 3"):
        letter(recorded[0][0], "train", of)


def test_an_old_hello_ends_no_session_and_a_second_copy_has_the_same_answer(
    keys: Certificates, tmp_path: Path, of: Context
) -> None:
    seal = server(keys)
    old, new = (seal.census_requests(HELLO, [1])[1] for _ in range(2))
    copies = [letter(new, "query.hello", of) for _ in range(2)]
    for copy in copies:
        copy.admit()
    answers = [copy.answer(PAYLOAD) for copy in copies]
    shares = {answer.config_records["seal"]["share"] for answer in answers}
    assert len(shares) == 1 and copies[0].current.keys == copies[1].current.keys
    file = tmp_path / RUN / "0" / "session.json"
    before = file.read_bytes()
    late = letter(old, "query.hello", of)
    with pytest.raises(ValueError, match="older than one that this client received"):
        late.admit()
    assert late.failure("no") is not None, "the reason goes back sealed"
    assert file.read_bytes() == before
    seal.open_census_reply(1, answers[1])
    message(seal, of).admit()
    with pytest.raises(ValueError, match="the session of the ServerApp's offer is in use"):
        letter(new, "query.hello", of).admit()
    message(seal, of).admit()


def test_a_late_reply_to_an_old_hello_ends_no_session(keys: Certificates, of: Context) -> None:
    seal, replies = server(keys), []
    for content in [seal.census_requests(HELLO, [node])[node] for node in (1, 2)]:
        asked = letter(content, "query.hello", of)
        asked.admit()
        replies.append(asked.answer(PAYLOAD))
    seal.open_census_reply(2, replies[1])
    seal.open_census_reply(1, replies[0])
    message(seal, of).admit()


def test_the_date_bounds_a_hello_and_no_later_message(
    keys: Certificates, state: dict[str, str], of: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, now = met(keys, **state), time.time()
    request = seal.census_requests(HELLO, [1])[1]
    for hours in (-25, 25, 24 * 10_000):  # after all certificates have expired
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours)
        received = message(seal, of)
        received.check_settings({"rounds": 2})
        received.admit()
        asked = letter(request, "query.hello", of)
        with pytest.raises(ValueError, match="UTC: it was replayed, or a clock is wrong by more"):
            asked.check_settings({"rounds": 2})
    for hours in (-23, 23):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours)
        letter(request, "query.hello", of).check_settings({"rounds": 2})


def test_the_node_alone_decides_where_the_session_lies(
    keys: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that chose the folder, such as one on its own machine, would choose the keys."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDMOSAIC_STATE_DIR", raising=False)
    seal, of = server(keys), context(keys, **{"state-dir": ""})
    of.run_config["state-dir"] = str(tmp_path / "relay")
    greeted(seal, of)
    assert (tmp_path / "home" / "sessions" / RUN / "0" / "session.json").exists()
    content = train(seal)
    for name in ("..", "../x", "", "a\n", "a/b"):
        with pytest.raises(NotAuthentic, match="its experiment is no name"):
            letter(with_header(content, experiment=name), "train", of)
    message(seal, of).admit()
    assert not (tmp_path / "relay").exists()


def test_a_message_without_its_session_and_a_damaged_file_are_a_line(
    keys: Certificates, tmp_path: Path, state: dict[str, str], of: Context
) -> None:
    seal = met(keys)
    with pytest.raises(NoSession, match="this client does not have the session of the message"):
        message(seal, of)
    content = train(met(keys, **state))
    with pytest.raises(NoSession):
        letter(with_header(content, n=client_app.seal.MAX_SKIP + 2), "train", of)
    file = tmp_path / RUN / "0" / "session.json"
    for damaged_text in (b"", b"[1, 2]", b"{}", b'{"transcript": 1, "secret": 2}'):
        file.write_bytes(damaged_text)
        with pytest.raises(Damaged, match=r"session.json is damaged: delete it"):
            letter(content, "train", of)


def test_version_1_is_refused_on_both_sides_in_a_line(keys: Certificates) -> None:
    seal, recorded = met(keys), json.loads((HERE / "version1.json").read_text("utf-8"))
    both = r"it has version 1 of the sealing protocol, this side has version 2: install the same"
    old = {k: bytes.fromhex(text) for k, text in recorded["hello"].items()}
    old_hello = RecordDict({**HELLO, "seal": ConfigRecord(old)})
    reply = hello(seal, context(keys)).answer(PAYLOAD)
    old = {k: bytes.fromhex(text) for k, text in recorded["reply"].items()}
    old_reply = RecordDict({**reply, "seal": ConfigRecord({**old, "k": 0})})
    for kind in ("query.hello", "train"):
        with pytest.raises(NotAuthentic, match=both):
            letter(old_hello, kind, context(keys))
    with pytest.raises(NotAuthentic, match=both):
        seal.open_census_reply(1, old_reply)
    train(seal)
    with pytest.raises(NotAuthentic, match=both):
        seal.open(0, old_reply)
    with pytest.raises(NotAuthentic, match="it has version 3 of the sealing protocol, this side"):
        seal.open_census_reply(1, with_header(reply, version=3))


def test_a_run_config_or_a_bundle_that_a_relay_changed_is_found(
    keys: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hello(server(keys), context(keys))
    asked.check_settings({"rounds": 2})
    with pytest.raises(ValueError, match="the received run config differs from the ServerApp's"):
        asked.check_settings({"rounds": 3})
    with pytest.raises(ValueError, match="the offer is for the experiment 'run'"):
        asked.check_experiment("other")
    monkeypatch.setattr(client_app.seal, "_app", lambda: "other")
    with pytest.raises(ValueError, match="the received app bundle differs from the ServerApp's"):
        asked.check_settings({"rounds": 2})


@pytest.mark.parametrize("kind", ["query.hello", "train"])
def test_nothing_that_a_changed_run_config_names_is_imported_or_opened(
    keys: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    imported, state = tmp_path / "imported", tmp_path / "state"
    name = module(tmp_path, f"open({str(imported)!r}, 'w')\n")
    importing_from(tmp_path, monkeypatch)
    seal, of = server(keys), context(keys)
    if kind == "train":
        greeted(seal, of, 0)
        content = train(seal)
    else:
        content = seal.census_requests(HELLO, [0])[0]
    changed = {**flat(tmp_path), "method": f"{name}:half", "state-dir": str(state)}
    of.run_config = {**changed, "fleet": f"{name}:Net", "data.name": f"{name}:load"}
    reply = answer(Message(content, NODE, kind), of)
    opened = (seal.open if kind == "train" else seal.open_census_reply)(0, reply.content)
    assert "the received run config differs from" in str(session.failed(opened))
    assert not imported.exists() and not state.exists() and name not in sys.modules


def test_a_node_serves_only_the_serverapps_it_names(keys: Certificates, tmp_path: Path) -> None:
    own = files.fingerprint(files.pem_key(keys.app_key).public_key())
    other = files.fingerprint(files.pem_key(make(tmp_path, [], 0).app_key).public_key())
    both = context(keys, **{"server-keys": f"{other},{own}"})
    request = server(keys).census_requests(HELLO, [0])[0]
    assert same(letter(request, "query.hello", both).content, HELLO)
    line = re.escape(f"key {own} is none of server-keys: ['{other}']")
    with pytest.raises(NotAuthentic, match=line):  # so no session begins
        letter(request, "query.hello", context(keys, **{"server-keys": other}))
    without = Context(1, NODE, {"partition-id": 0, "server-keys": own}, RecordDict(), {})
    with pytest.raises(ValueError, match="node config key is missing: sealing needs both"):
        open_message(Message(HELLO, NODE, "query.hello"), without)


def test_a_message_for_a_round_after_the_last_is_refused(tmp_path: Path) -> None:
    request = protocol.ModelRequest(w={}).stamped(RUN, 3).pack()
    of = Context(1, NODE, {"partition-id": 0}, RecordDict(), flat(tmp_path, method="fedavg"))
    reply = answer(Message(request, NODE, "train"), of)
    assert "the message is for round 3 of 2" in reply.error.reason


def test_a_bundles_digest_covers_all_its_code(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    before = session.app_digest(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "c.py").write_text("3")
    (tmp_path / "lab" / "c.pyc").write_text("3")
    assert session.app_digest(tmp_path) == before
    for path, text in (("lab/a.py", "3"), ("lab/d.py", ""), ("e.py", "")):
        (tmp_path / path).write_text(text)
        assert session.app_digest(tmp_path) != before
        before = session.app_digest(tmp_path)


def test_what_is_wrong_with_the_files_is_said_in_a_line(keys: Certificates, tmp_path: Path) -> None:
    for said, of in (
        ("node config ca is missing", Context(1, 1, {"key": "a"}, RecordDict(), {})),
        ("/nowhere cannot be read: No such file", context(keys, key="/nowhere")),
        ("it holds no certificate", context(keys, ca=str(keys.key(0)))),
        ("it holds no OpenSSH key", context(keys, key=str(keys.ca))),
    ):
        with pytest.raises(ValueError, match=said) as refused:
            hello(server(keys), of)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="FEDMOSAIC_TRUST = .*serverapp.key cannot be read"):
        Trust(tmp_path)
