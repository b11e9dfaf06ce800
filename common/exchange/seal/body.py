"""Encryption of a message's content under a one-time key.

A body is encrypted once for all receivers. Its random key is used for nothing else, and each
receiver gets a separately wrapped copy (``session.py``). A receiver could encrypt another body
under the same key, so the wrap is also bound to the body's digest.

The pieces of a body are the JSON schema and the arrays of a packed payload, encrypted one by
one; the first piece names them. All pieces form one stream of AES-256-GCM. No piece is used before
the tag at the end of the stream is verified.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from common.files import parse_json

KEY, NONCE, TAG = 32, 12, 16  #: bytes
MAX_PIECES = 1000
ZERO = bytes(NONCE)  #: the nonce of a key that encrypts one stream
Random = Callable[[int], bytes]
"""Source of n random bytes: the operating system's, except in test vectors."""


class NotAuthentic(ValueError):
    """Error for a message that is not authentic at its place in the exchange."""


@final
@dataclass(frozen=True)
class Body:
    """An encrypted payload: its encrypted pieces, their tag and digest, and their key."""

    pieces: ArrayRecord
    tag: bytes
    digest: bytes
    key: bytes


def encrypt(content: RecordDict, random: Random = secrets.token_bytes) -> Body:
    """Return a packed payload as a body; the numbers are copied once."""
    key = random(KEY)
    stream = Cipher(AES256(key), GCM(ZERO)).encryptor()
    sealed = {}
    for i, piece in enumerate(plain(content)):
        data = stream.update(piece)
        sealed[str(i)] = Array(dtype="uint8", shape=(len(data),), stype="sealed", data=data)
    stream.finalize()
    pieces = ArrayRecord(sealed)
    return Body(pieces, stream.tag, digest(pieces, stream.tag), key)


def decrypt(pieces: ArrayRecord, tag: bytes, key: bytes) -> RecordDict:
    """Return the packed payload from ``encrypt``; raise ``NotAuthentic`` if a bit was changed."""
    stream = Cipher(AES256(key), GCM(ZERO, tag)).decryptor()
    opened = [stream.update(data) for data in _ordered(pieces)]
    try:
        stream.finalize()
    except InvalidTag:
        raise NotAuthentic("its content was altered") from None
    try:  # the sender is authenticated, but may be malicious
        match parse_json(opened[0]):
            case {"kind": str(kind), "arrays": [*names]}:
                arrays = {str(name): data for name, data in zip(names, opened[2:], strict=True)}
            case _:
                raise ValueError
    except (ValueError, RecursionError):
        raise ValueError("its sealed content is malformed") from None
    return packed(kind, opened[1], arrays)


def packed(kind: str, schema: bytes, arrays: Mapping[str, bytes]) -> RecordDict:
    """Return a payload in the form of ``Records.pack``, from arrays in .npy form."""
    wrapped = {
        name: Array(dtype="uint8", shape=(len(data),), stype="numpy.ndarray", data=data)
        for name, data in arrays.items()
    }
    fields = ConfigRecord({"kind": kind, "skeleton": schema})
    return RecordDict({"arrays": ArrayRecord(wrapped), "fields": fields})


def plain(content: RecordDict) -> list[bytes]:
    """Return the pieces of a packed payload: kind and array names, the schema, each array."""
    arrays, fields = content.array_records["arrays"], content.config_records["fields"]
    head = {"kind": fields["kind"], "arrays": list(arrays)}
    schema = fields["skeleton"]
    assert isinstance(schema, bytes), "a packed payload has a schema"
    return [json.dumps(head).encode(), schema, *(array.data for array in arrays.values())]


def digest(pieces: ArrayRecord, tag: bytes) -> bytes:
    """Return the SHA-256 of a body's tag and pieces, with their lengths."""
    return hashed([tag, *_ordered(pieces)])


def hashed(items: list[bytes]) -> bytes:
    """Return the SHA-256 of ``items``, each after its length."""
    sha = hashlib.sha256()
    for item in items:
        sha.update(len(item).to_bytes(8, "big"))
        sha.update(item)
    return sha.digest()


def _ordered(pieces: ArrayRecord) -> list[bytes]:
    names = [str(i) for i in range(len(pieces))]
    if not 2 <= len(pieces) <= MAX_PIECES or set(pieces) != set(names):
        raise NotAuthentic("its pieces are not those of a sealed message")
    return [pieces[name].data for name in names]
