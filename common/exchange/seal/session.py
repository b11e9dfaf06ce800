"""Key agreement between the ServerApp and client k, and the binding of messages to their place.

The census request carries an *offer*: a new X25519 share of the ServerApp, a nonce, the experiment,
the time, and digests of the run config, the app bundle and the request itself. The ServerApp signs
the offer with its key. Client k replies with its own share and signs it, together with the offer,
with its registered key. HKDF derives the client's X25519 key from the registered key and the
experiment, so a client stores nothing. From the shared secret HKDF derives one key for each
direction. Its salt is the transcript: offer, signature, k and the client's share.

Later messages repeat the offer, so each process of a client can derive the keys again. A session
key encrypts only the keys of bodies (``body.py``), which AES-256-GCM wraps. The associated data are
the transcript, the experiment, the round, k, the body's digest, and the message's type, direction,
number in the session and nonce. A reply is bound to the nonce of its request.
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
"""Prefix of all signed and derived data; another format gets another number."""
REQUEST = 16  #: bytes of a message's nonce
SEAL, SEALED = "seal", "sealed"  #: names of the records of a sealed message
FAILED = "seal.Failed"
"""Kind of a payload with the reason for a failure in place of a reply."""
MAX_OFFER = 20_000  #: bytes


@final
@dataclass(frozen=True)
class Offer:
    """Data of the ServerApp and the run that open a session; ``at``: time in ns since 1970."""

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
        """Return the offer from ``to_bytes``; raise ``NotAuthentic`` if it is malformed."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise NotAuthentic("its offer is malformed") from None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


@final
@dataclass(frozen=True)
class Signed:
    """An encoded offer with the ServerApp's signature."""

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
    """Return the client's X25519 key of an experiment, derived from its registered signing key."""
    scalar = key.private_numbers().private_value.to_bytes((key.key_size + 7) // 8, "big")
    info = f"{NAME} X25519 {experiment}".encode()
    return X25519PrivateKey.from_private_bytes(HKDF(SHA256(), KEY, None, info).derive(scalar))


def public(share: X25519PrivateKey) -> bytes:
    return share.public_key().public_bytes_raw()


def agree(own: X25519PrivateKey, other: bytes, offer: Signed, k: int, client: bytes) -> Keys:
    """Return the keys of a session; ``client``: the client's share, ``other``: the other side's.

    Raises ``NotAuthentic`` if the other side's share is invalid.
    """
    transcript = hashed([*offer.parts, str(k).encode(), client])
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise NotAuthentic("its X25519 share is invalid") from None
    both = HKDF(SHA256(), 2 * KEY, transcript, f"{NAME} keys".encode()).derive(secret)
    return Keys(both[:KEY], both[KEY:], transcript)


def sign(key: ec.EllipticCurvePrivateKey, what: str, parts: list[bytes]) -> bytes:
    """Return a signature over ``parts`` that is valid for the purpose ``what`` only."""
    return key.sign(hashed([NAME.encode(), what.encode(), *parts]), ec.ECDSA(SHA384()))


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, what: str, parts: list[bytes]) -> None:
    """Raise ``NotAuthentic`` unless the signature is valid for ``what`` and ``parts``."""
    try:
        key.verify(signature, hashed([NAME.encode(), what.encode(), *parts]), ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise NotAuthentic(f"the signature of its {what} is invalid") from None


def seal(
    body: Body, keys: Keys, place: Place, way: Direction, more: Mapping[str, int | bytes]
) -> RecordDict:
    """Return a body for one receiver; ``more``: further header fields. ``place`` is not sent."""
    nonce = secrets.token_bytes(NONCE)
    bound = _bound(keys, place, way, body.digest)
    wrapped = nonce + AESGCM(getattr(keys, way)).encrypt(nonce, body.key, bound)
    about = ConfigRecord({**more, "wrapped": wrapped, "tag": body.tag})
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
    bound = _bound(keys, place, way, digest(pieces, tag))
    try:
        key = AESGCM(getattr(keys, way)).decrypt(wrapped[:NONCE], wrapped[NONCE:], bound)
    except (InvalidTag, ValueError):
        raise NotAuthentic("it was not sealed for this place by the other side") from None
    return decrypt(pieces, tag, key)


def _bound(keys: Keys, place: Place, way: Direction, body: bytes) -> bytes:
    data = {**asdict(place), "request": place.request.hex(), "way": way, "name": NAME}
    data |= {"transcript": keys.transcript.hex(), "body": body.hex()}
    return json.dumps(data, sort_keys=True).encode()


def header(content: RecordDict) -> ConfigRecord:
    """Return the header of a sealed message; raise ``NotAuthentic`` if there is none."""
    record = content.get(SEAL)
    if not isinstance(record, ConfigRecord):
        raise NotAuthentic("it is not sealed")
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
    parts = (part for name in sorted(files) for part in (name.encode(), files[name].read_bytes()))
    return hashed(list(parts)).hex()


def failure(reason: str) -> RecordDict:
    """Return the payload of a client that cannot send a reply."""
    return packed(FAILED, reason.encode(), {})


def failed(content: RecordDict) -> str | None:
    """Return the reason in a payload of ``failure``; None for other payloads."""
    fields = content.get("fields")
    if not isinstance(fields, ConfigRecord) or fields.get("kind") != FAILED:
        return None
    reason = fields.get("skeleton")
    return reason.decode(errors="replace") if isinstance(reason, bytes) else "it gives no reason"


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_text(text: object) -> bytes:
    """Return the bytes from ``to_text``; raise ``NotAuthentic`` for an invalid text."""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise NotAuthentic("its offer is malformed") from None
