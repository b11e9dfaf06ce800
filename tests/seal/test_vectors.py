"""The published test vectors of the sealing protocol, ``vectors.json``.

All bytes are in hexadecimal. ``inputs`` are the keys, random bytes and texts of one session,
``expected`` what follows from them, exactly. ``signatures`` are ECDSA signatures, which differ each
time they are made, so they are verified.
"""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA384

from common.exchange.seal import body, session
from common.exchange.seal.session import Direction, Offer, Place

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text("utf-8"))
INPUTS: dict[str, Any] = VECTORS["inputs"]
SIDES = ("server", "client")


def raw(name: str) -> bytes:
    return bytes.fromhex(INPUTS[name])


def signing_key(side: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int(INPUTS[f"{side}_signing_key"], 16), ec.SECP384R1())


def shares() -> list[X25519PrivateKey]:
    return [X25519PrivateKey.from_private_bytes(raw(f"{side}_share_private")) for side in SIDES]


def offer() -> bytes:
    payload = body.packed("protocol.CensusRequest", raw("hello_schema"), {})
    return Offer(
        experiment=INPUTS["experiment"],
        share=session.to_text(session.public(shares()[0])),
        at=INPUTS["at"],
        config=session.config_digest(INPUTS["run_config"]),
        app=INPUTS["app_digest"],
        hello=session.hello_digest(payload),
        certificate=session.to_text(raw("certificate")),
    ).to_bytes()


def accepted() -> list[bytes]:
    """The parts that the client signs."""
    k = str(INPUTS["k"]).encode()
    return [offer(), k, session.public(shares()[1]), raw("hello_request")]


def expected() -> dict[str, Any]:
    """What follows from the inputs."""
    server, client = shares()
    public, k = session.public(client), INPUTS["k"]
    keys = session.agree(server, public, offer(), k, public)
    assert keys == session.agree(client, session.public(server), offer(), k, public)
    arrays = {name: bytes.fromhex(text) for name, text in INPUTS["arrays"].items()}
    payload = body.packed(INPUTS["kind"], raw("schema"), arrays)
    sealed_body = body.encrypt(payload, lambda _: raw("body_key"))
    place = Place(INPUTS["experiment"], INPUTS["t"], k, INPUTS["type"], 2, raw("request"))
    ways: tuple[Direction, Direction] = ("down", "up")
    seals: dict[str, Any] = {}
    for way in ways:
        at = keys.at(place.n)
        sealed = session.seal(sealed_body, at, place, way, {}, lambda _: raw("wrap_nonce"))
        assert body.plain(session.unseal(sealed, at, place, way)) == body.plain(payload)
        bound = session.associated_data(at, place, way, sealed_body.digest)
        wrapped = sealed.config_records["seal"]["wrapped"]
        assert isinstance(wrapped, bytes)
        seals[way] = {"associated_data": bound.decode(), "wrapped": wrapped.hex()}
    pieces = sealed_body.pieces
    return {
        "server_share": session.public(server).hex(),
        "client_share": public.hex(),
        "offer": offer().decode(),
        "signed_digests": {
            "offer": body.hashed([b"fedmosaic seal 2", b"offer", offer()]).hex(),
            "accept": body.hashed([b"fedmosaic seal 2", b"accept", *accepted()]).hex(),
        },
        "transcript": keys.transcript.hex(),
        "messages": [
            {"secret": at.secret.hex(), **{way: at.key(way).hex() for way in ways}}
            for at in (keys.at(n) for n in range(3))
        ],
        "pieces_plain": [piece.hex() for piece in body.plain(payload)],
        "pieces": [pieces[str(i)].data.hex() for i in range(len(pieces))],
        "tag": sealed_body.tag.hex(),
        "body_digest": sealed_body.digest.hex(),
        "seals_of_message_2": seals,
    }


def test_the_published_vectors_follow_from_their_inputs() -> None:
    assert expected() == VECTORS["expected"]
    for side, what, parts in (("server", "offer", [offer()]), ("client", "accept", accepted())):
        signature = bytes.fromhex(VECTORS["signatures"][what])
        session.verify(signing_key(side).public_key(), signature, what, parts)
        digest = bytes.fromhex(VECTORS["expected"]["signed_digests"][what])
        signing_key(side).public_key().verify(signature, digest, ec.ECDSA(SHA384()))


def test_the_keys_follow_by_the_definition_of_hkdf() -> None:
    found = VECTORS["expected"]
    raw_keys = [X25519PrivateKey.from_private_bytes(raw(f"{side}_share_private")) for side in SIDES]
    shared = raw_keys[0].exchange(raw_keys[1].public_key())
    parts = [found["offer"].encode(), str(INPUTS["k"]).encode(), session.public(raw_keys[1])]
    salt = hashlib.sha256(b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()
    assert salt.hex() == found["transcript"]

    def expand(key: bytes, info: str) -> bytes:
        return hmac.digest(key, f"fedmosaic seal 2 {info}\x01".encode(), "sha256")

    secret = expand(hmac.digest(salt, shared, "sha256"), "session")
    for message in found["messages"]:
        keys = {way: expand(secret, way).hex() for way in ("down", "up")}
        assert message == {"secret": secret.hex(), **keys}
        secret = expand(secret, "next")
