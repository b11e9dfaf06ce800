"""Key agreement between the ServerApp and client k, and the binding of messages to their place.

The census request, the *hello*, carries an *offer*: a new X25519 share of the ServerApp, the
experiment, the time, and digests of the run config, the app bundle and the request itself. The
ServerApp signs the offer with its key. Client k replies with a new share of its own and signs both
with its registered key. HKDF derives the secret of message 0, the reply to the hello, from the
shared secret. Its salt is the transcript: offer, k and the client's share.

From the secret of message n follow one key for each direction, and the secret of message n + 1. No
secret leads back to an earlier one, and each side deletes a secret after its use. So neither the
signing keys nor the client's files open a message that was sent before they were stolen.

A message key encrypts only the keys of bodies (``body.py``), which AES-256-GCM wraps. The
associated data are the transcript, the experiment, the round, k, the body's digest, and the
message's type, direction, number in the session and nonce. A reply is bound to the nonce of its
request.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self, TypeVar, final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from common.exchange.seal.body import (
    KEY,
    NONCE,
    Body,
    NotAuthentic,
    Random,
    decrypt,
    digest,
    hashed,
    packed,
    plain,
)
from common.files import Damaged, parse_json
from common.settings.section import Value

T = TypeVar("T", int, bytes, str)

VERSION = 2  #: version of the protocol; each side accepts this one only
NAME = f"fedmosaic seal {VERSION}"
"""Prefix of all signed and derived data."""
REQUEST = 16  #: bytes of a message's nonce
SEAL, SEALED = "seal", "sealed"  #: names of the records of a sealed message
FAILED = "seal.Failed"
"""Kind of a payload with the reason for a failure in place of a reply."""
MAX_OFFER = 20_000  #: bytes


@final
class NoSession(Damaged):
    """Error of a client without the session of a message. The ServerApp then sends a new hello."""


@final
@dataclass(frozen=True)
class Offer:
    """Data of the ServerApp and the run that open a session; ``at``: time in ns since 1970."""

    experiment: str
    share: str
    at: int
    config: str
    app: str
    hello: str
    certificate: str

    @classmethod
    def from_bytes(cls, text: bytes) -> Self:
        """Return the offer from ``to_bytes``; raise ``NotAuthentic`` if it is malformed."""
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError, RecursionError):
            raise NotAuthentic("its offer is malformed") from None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


Direction = Literal["down", "up"]


@final
@dataclass(frozen=True)
class Keys:
    """Keys of message ``n`` of a session, one for each direction.

    ``transcript``: digest that names the session. ``secret``: 32 bytes, from which the keys of
    message n and of all later messages follow.
    """

    transcript: bytes
    secret: bytes
    n: int = 0

    def at(self, n: int) -> Self:
        """Return the keys of message n, which is not before this one."""
        secret = self.secret
        for _ in range(n - self.n):
            secret = _derive(secret, "next")
        return replace(self, secret=secret, n=n)

    def key(self, way: Direction) -> bytes:
        return _derive(self.secret, way)


def _derive(secret: bytes, what: str) -> bytes:
    return HKDFExpand(SHA256(), KEY, f"{NAME} {what}".encode()).derive(secret)


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


def public(share: X25519PrivateKey) -> bytes:
    return share.public_key().public_bytes_raw()


def transcript(offer: bytes, k: int, client: bytes) -> bytes:
    """Return the digest of an encoded offer and of client k's share in reply to it."""
    return hashed([offer, str(k).encode(), client])


def agree(own: X25519PrivateKey, other: bytes, offer: bytes, k: int, client: bytes) -> Keys:
    """Return the keys of message 0; ``client``: the client's share, ``other``: the other side's.

    Raises ``NotAuthentic`` if the other side's share is invalid.
    """
    salt = transcript(offer, k, client)
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise NotAuthentic("its X25519 share is invalid") from None
    return Keys(salt, HKDF(SHA256(), KEY, salt, f"{NAME} session".encode()).derive(shared))


def sign(key: ec.EllipticCurvePrivateKey, what: str, items: list[bytes]) -> bytes:
    """Return a signature over ``items`` that is valid for the purpose ``what`` only."""
    return key.sign(hashed([NAME.encode(), what.encode(), *items]), ec.ECDSA(SHA384()))


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, what: str, items: list[bytes]) -> None:
    """Raise ``NotAuthentic`` unless the signature is valid for ``what`` and ``items``."""
    try:
        key.verify(signature, hashed([NAME.encode(), what.encode(), *items]), ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise NotAuthentic(f"the signature of its {what} is invalid") from None


def seal(
    body: Body,
    keys: Keys,
    place: Place,
    way: Direction,
    more: Mapping[str, int | bytes | str],
    random: Random = secrets.token_bytes,
) -> RecordDict:
    """Return a body for one receiver; ``more``: further header fields. ``place`` is not sent."""
    nonce = random(NONCE)
    bound = associated_data(keys, place, way, body.digest)
    wrapped = nonce + AESGCM(keys.key(way)).encrypt(nonce, body.key, bound)
    about = ConfigRecord({**more, "version": VERSION, "wrapped": wrapped, "tag": body.tag})
    return RecordDict({SEALED: body.pieces, SEAL: about})


def unseal(content: RecordDict, keys: Keys, place: Place, way: Direction) -> RecordDict:
    """Return the packed payload from ``seal``.

    Raises ``NotAuthentic`` unless the other side sealed this content for this place, ``ValueError``
    for authentic but malformed content.
    """
    pieces, about = content.get(SEALED), header(content)
    if not isinstance(pieces, ArrayRecord):
        raise NotAuthentic("it is not sealed")
    wrapped, tag = field(about, "wrapped", bytes), field(about, "tag", bytes)
    bound = associated_data(keys, place, way, digest(pieces, tag))
    try:
        key = AESGCM(keys.key(way)).decrypt(wrapped[:NONCE], wrapped[NONCE:], bound)
    except (InvalidTag, ValueError):
        raise NotAuthentic("it was not sealed for this place by the other side") from None
    return decrypt(pieces, tag, key)


def associated_data(keys: Keys, place: Place, way: Direction, body: bytes) -> bytes:
    """Return what the wrap of a body's key is bound to; ``body``: the body's digest."""
    data = {**asdict(place), "request": place.request.hex(), "way": way, "name": NAME}
    data |= {"transcript": keys.transcript.hex(), "body": body.hex()}
    return json.dumps(data, sort_keys=True).encode()


def header(content: RecordDict) -> ConfigRecord:
    """Return the header of a sealed message.

    Raises ``NotAuthentic`` if there is none, or if it is of another version of the protocol.
    """
    record = content.get(SEAL)
    if not isinstance(record, ConfigRecord):
        raise NotAuthentic("it is not sealed")
    if (version := record.get("version", 1)) != VERSION:  # version 1 had no such field
        raise NotAuthentic(
            f"it has version {str(version)[:9]} of the sealing protocol, this side has version "
            f"{VERSION}: install the same fedmosaic on both sides"
        )
    return record


def field(about: ConfigRecord, name: str, kind: type[T]) -> T:
    """Return an entry of the header; raise ``NotAuthentic`` if it is missing or of another type."""
    value = about.get(name)
    if type(value) is not kind or (isinstance(value, bytes) and len(value) > MAX_OFFER):
        raise NotAuthentic(f"its seal has no {name}")
    return value


def hello_digest(content: RecordDict) -> str:
    """Return the digest of the census request, whose payload is signed but not encrypted."""
    try:
        return hashed(plain(content)).hex()
    except (KeyError, AssertionError):
        raise NotAuthentic("its census request is malformed") from None


def config_digest(settings: Mapping[str, Value]) -> str:
    """Return the SHA-256 of a run config, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()


def app_digest(root: Path) -> str:
    """Return the SHA-256 of all Python files of the app in ``root``, including the user's."""
    files = {
        path.relative_to(root).as_posix(): path
        for top in root.iterdir()
        if not top.name.startswith(".")
        for path in ([top] if top.is_file() else top.rglob("*.py"))
        if path.suffix == ".py"
    }
    items = (item for name in sorted(files) for item in (name.encode(), files[name].read_bytes()))
    return hashed(list(items)).hex()


def failure(reason: str) -> RecordDict:
    """Return the payload of a client that cannot send a reply."""
    return packed(FAILED, reason.encode(), {})


def failed(content: RecordDict) -> str | None:
    """Return the reason in a payload of ``failure``; None for other payloads."""
    items = content.get("fields")
    if not isinstance(items, ConfigRecord) or items.get("kind") != FAILED:
        return None
    reason = items.get("skeleton")
    return reason.decode(errors="replace") if isinstance(reason, bytes) else "it gives no reason"


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_text(text: object) -> bytes:
    """Return the bytes from ``to_text``; raise ``NotAuthentic`` for an invalid text."""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise NotAuthentic("its offer is malformed") from None
