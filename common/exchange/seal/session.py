"""Key agreement between the ServerApp and client k, and the binding of messages to their place.

The hello carries an *offer*: a fresh X25519 share of the ServerApp's, a nonce, the experiment, the
time, and digests of the run config, the app bundle and the hello itself, all signed with the
ServerApp's key. Client k answers with its own share, signed over the offer with its registered key.
Its X25519 key follows by HKDF from the registered one and the experiment, so a client keeps
nothing. HKDF makes of the shared secret one key for each direction, salted with the transcript:
offer, signature, k and the client's share.

Later messages repeat the offer, so each process of a client can derive the keys anew. What travels
under a key is the key of a body (``body.py``), wrapped with AES-256-GCM. Its associated data are
the transcript, the experiment, the round, k, the message's type, direction, number in the session
and nonce, and the body's digest; a reply is bound to the nonce of the message that it answers.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar, final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from common.exchange.seal.body import (
    KEY,
    NONCE,
    Body,
    NotAuthentic,
    decrypt,
    digest,
    hashed,
    packed,
    plain,
)
from common.settings.section import Value

T = TypeVar("T", int, bytes)

NAME = "fedmosaic seal 1"
"""Stands before everything that is signed or derived; another form gets another number."""
REQUEST = 16  #: bytes of a message's nonce
SEAL, SEALED = "seal", "sealed"  #: the records of a sealed message
FAILED = "seal.Failed"
"""The kind of a reply that says why there is none."""
MAX_OFFER = 20_000  #: bytes


@final
@dataclass(frozen=True)
class Offer:
    """The ServerApp's statement about itself and the run. ``at``: its time in ns since 1970."""

    experiment: str
    share: str
    nonce: str
    at: int
    config: str
    app: str
    hello: str
    certificate: str

    @classmethod
    def from_bytes(cls, text: bytes) -> Self:
        """Inverse of ``to_bytes``; of a signed offer."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise NotAuthentic("its offer is malformed") from None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


@final
@dataclass(frozen=True)
class Signed:
    """An offer as it travels: its text and the ServerApp's signature."""

    text: bytes
    signature: bytes

    @property
    def parts(self) -> list[bytes]:
        return [self.text, self.signature]


@final
@dataclass(frozen=True)
class Keys:
    """Keys of one session, one for each direction, and the digest of the transcript."""

    down: bytes
    up: bytes
    transcript: bytes


@final
@dataclass(frozen=True)
class Place:
    """Place of a message; ``n``: its number in the session; ``request``: its nonce."""

    experiment: str
    t: int
    k: int
    kind: str
    n: int
    request: bytes


Direction = Literal["down", "up"]


def own_share(key: ec.EllipticCurvePrivateKey, experiment: str) -> X25519PrivateKey:
    """Client's X25519 key of an experiment, from its registered key, which signs and no more."""
    scalar = key.private_numbers().private_value.to_bytes((key.key_size + 7) // 8, "big")
    info = f"{NAME} X25519 {experiment}".encode()
    return X25519PrivateKey.from_private_bytes(HKDF(SHA256(), KEY, None, info).derive(scalar))


def public(share: X25519PrivateKey) -> bytes:
    return share.public_key().public_bytes_raw()


def agree(own: X25519PrivateKey, other: bytes, offer: Signed, k: int, client: bytes) -> Keys:
    """The keys of a session; ``client``: the client's share, ``other``: the other side's.

    Raises ``NotAuthentic``: the other's share is none.
    """
    transcript = hashed([*offer.parts, str(k).encode(), client])
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise NotAuthentic("its X25519 share is none") from None
    both = HKDF(SHA256(), 2 * KEY, transcript, f"{NAME} keys".encode()).derive(secret)
    return Keys(both[:KEY], both[KEY:], transcript)


def sign(key: ec.EllipticCurvePrivateKey, what: str, parts: list[bytes]) -> bytes:
    """A signature over ``parts`` that holds for ``what`` only."""
    said = hashed([NAME.encode(), what.encode(), *parts])
    return key.sign(said, ec.ECDSA(SHA384()))


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, what: str, parts: list[bytes]) -> None:
    """Raise ``NotAuthentic`` unless the signature is that of ``sign``."""
    try:
        key.verify(signature, hashed([NAME.encode(), what.encode(), *parts]), ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise NotAuthentic(f"the signature of its {what} is not good") from None


def seal(
    body: Body, keys: Keys, place: Place, way: Direction, more: Mapping[str, int | bytes]
) -> RecordDict:
    """A body for one receiver, with what the header says beside; no ``place`` travels by itself."""
    nonce = secrets.token_bytes(NONCE)
    bound = _bound(keys, place, way, body.digest)
    wrapped = nonce + AESGCM(getattr(keys, way)).encrypt(nonce, body.key, bound)
    about = ConfigRecord({**more, "wrapped": wrapped, "tag": body.tag})
    return RecordDict({SEALED: body.pieces, SEAL: about})


def unseal(content: RecordDict, keys: Keys, place: Place, way: Direction) -> RecordDict:
    """Inverse of ``seal``: the packed payload.

    Raises ``NotAuthentic`` unless the other side sealed exactly this for exactly this place;
    ``ValueError`` for what it sealed and should not have.
    """
    pieces, about = content.get(SEALED), header(content)
    if not isinstance(pieces, ArrayRecord):
        raise NotAuthentic("it is not sealed")
    wrapped, tag = field(about, "wrapped", bytes), field(about, "tag", bytes)
    bound = _bound(keys, place, way, digest(pieces, tag))
    try:
        key = AESGCM(getattr(keys, way)).decrypt(wrapped[:NONCE], wrapped[NONCE:], bound)
    except (InvalidTag, ValueError):
        raise NotAuthentic("it was not sealed for this place by the other side") from None
    return decrypt(pieces, tag, key)


def _bound(keys: Keys, place: Place, way: Direction, body: bytes) -> bytes:
    said = {**asdict(place), "request": place.request.hex(), "way": way, "name": NAME}
    said |= {"transcript": keys.transcript.hex(), "body": body.hex()}
    return json.dumps(said, sort_keys=True).encode()


def header(content: RecordDict) -> ConfigRecord:
    """The record that says how a message is sealed; raises ``NotAuthentic`` if there is none."""
    found = content.get(SEAL)
    if not isinstance(found, ConfigRecord):
        raise NotAuthentic("it is not sealed")
    return found


def field(about: ConfigRecord, name: str, kind: type[T]) -> T:
    """An entry of the header; raises ``NotAuthentic`` if it is not there or something else."""
    found = about.get(name)
    if type(found) is not kind or (isinstance(found, bytes) and len(found) > MAX_OFFER):
        raise NotAuthentic(f"its seal has no {name}")
    return found


def hello_digest(content: RecordDict) -> str:
    """What an offer says of the hello's payload, which is signed and not encrypted."""
    try:
        return hashed(plain(content)).hex()
    except (KeyError, AssertionError):
        raise NotAuthentic("its hello is malformed") from None


def config_digest(settings: Mapping[str, Value]) -> str:
    """SHA-256 of a run config, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()


def app_digest(root: Path) -> str:
    """SHA-256 over all Python files of the app in ``root``, an app's own modules included."""
    files = {
        path.relative_to(root).as_posix(): path
        for top in root.iterdir()
        if not top.name.startswith(".")
        for path in ([top] if top.is_file() else top.rglob("*.py"))
        if path.suffix == ".py"
    }
    parts = (part for name in sorted(files) for part in (name.encode(), files[name].read_bytes()))
    return hashed(list(parts)).hex()


def failure(reason: str) -> RecordDict:
    """The payload of a client that cannot answer."""
    return packed(FAILED, reason.encode(), {})


def failed(content: RecordDict) -> str | None:
    """The reason in such a payload; None for any other."""
    fields = content.get("fields")
    if not isinstance(fields, ConfigRecord) or fields.get("kind") != FAILED:
        return None
    reason = fields.get("skeleton")
    return reason.decode(errors="replace") if isinstance(reason, bytes) else "it gives no reason"


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_text(text: object) -> bytes:
    """Inverse of ``to_text``; raises ``NotAuthentic`` for what is none."""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise NotAuthentic("its offer is malformed") from None
