"""Keys of pairs of clients: agreement, derivation by attempt, and signatures.

Every client has an X25519 share for a run, which the server relays. From the secret of a pair HKDF
derives one key for each attempt. It reveals nothing of the keys of other attempts, so that a client
can reveal the key of a lost peer. The *context* of an attempt is a digest of everything that its
clients must agree on. Clients with different contexts have masks that do not cancel.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from common.exchange.records import StateDict
from common.exchange.seal import session
from common.exchange.seal.body import NONCE, TAG, NotAuthentic, hashed
from common.files import parse_json

NAME = "fedmosaic secure 1"
"""Prefix of all derived and signed data, with the version of the protocol."""
KEY = 32  #: bytes of every key
SHARE = KEY + TAG  #: bytes of an encrypted share of a self mask's key
ZERO = bytes(NONCE)  #: the nonce of a key that encrypts one share


@final
@dataclass(frozen=True)
class Peer:
    """A client of an attempt: its X25519 share, and a signature with its registered key or b""."""

    share: bytes
    signature: bytes = b""


@final
@dataclass(frozen=True)
class Attempt:
    """What the server tells every client of an attempt.

    ``counter``: rises with every attempt. ``most``: the largest weight of a client. ``peers``: the
    clients by number, among them the receiver.
    """

    counter: int
    most: int
    peers: Mapping[int, Peer]

    def to_text(self) -> str:
        peers = {str(k): [p.share.hex(), p.signature.hex()] for k, p in sorted(self.peers.items())}
        return json.dumps({"counter": self.counter, "most": self.most, "peers": peers})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the attempt from ``to_text``; raise ``ValueError`` if it is malformed."""
        try:
            fields = parse_json(text.encode())
            counter, most, peers = (fields[name] for name in ("counter", "most", "peers"))
            known = {int(k): Peer(*map(bytes.fromhex, peer)) for k, peer in peers.items()}
            if type(counter) is not int or type(most) is not int or not known or most < 1:
                raise ValueError
            if any(not k >= 0 or len(peer.share) != KEY for k, peer in known.items()):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("the request has no valid attempt of a secure sum") from None
        return cls(counter, most, known)

    def context(self, experiment: str, start: StateDict) -> bytes:
        """Return the digest of what the clients must agree on; ``start``: the received weights.

        With the weights in it, a server gains nothing by sending other weights to some clients
        (Pasquini et al., "Eluding Secure Aggregation in Federated Learning via Model
        Inconsistency", CCS 2022).
        """
        items = [NAME.encode(), experiment.encode(), self.to_text().encode()]
        for name, value in sorted(start.items()):
            items += [name.encode(), str(list(value.shape)).encode(), value.numpy().tobytes()]
        return hashed(items)


def pair(own: X25519PrivateKey, k: int, peer: bytes, j: int, experiment: str) -> bytes:
    """Return the secret of clients k and j for a run; ``peer``: the share of j, which may be k.

    Raises ``NotAuthentic`` if the share is invalid.
    """
    shares = (session.public(own), peer)
    first, second = shares if k <= j else shares[::-1]
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise NotAuthentic("a peer's X25519 share is invalid") from None
    sha = Hash(SHA256())
    sha.update(experiment.encode() + first + second)
    return HKDF(SHA256(), KEY, sha.finalize(), f"{NAME} pair".encode()).derive(shared)


def of_attempt(secret: bytes, counter: int, context: bytes) -> bytes:
    """Return s_kj, the key of a pair's mask in one attempt, from the secret of the pair."""
    info = f"{NAME} attempt {counter} {context.hex()}"
    return HKDF(SHA256(), KEY, None, info.encode()).derive(secret)


def _of_share(secret: bytes, counter: int, context: bytes, sender: int, receiver: int) -> AESGCM:
    info = f"{NAME} share {counter} {context.hex()} {sender} {receiver}"
    return AESGCM(HKDF(SHA256(), KEY, None, info.encode()).derive(secret))


def encrypted(
    share: bytes, secret: bytes, counter: int, context: bytes, sender: int, receiver: int
) -> bytes:
    """Return a share of the sender's self mask for one receiver, ``SHARE`` bytes."""
    return _of_share(secret, counter, context, sender, receiver).encrypt(ZERO, share, None)


def decrypted(
    data: bytes, secret: bytes, counter: int, context: bytes, sender: int, receiver: int
) -> bytes:
    """Return the share from ``encrypted``; raise ``NotAuthentic`` for another place or sender."""
    try:
        return _of_share(secret, counter, context, sender, receiver).decrypt(ZERO, data, None)
    except InvalidTag:
        raise NotAuthentic(f"the share of client {sender} is not of this attempt") from None


def sign(key: ec.EllipticCurvePrivateKey, experiment: str, k: int, share: bytes) -> bytes:
    """Return client k's signature on its X25519 share, with its registered key."""
    return session.sign(key, NAME, [experiment.encode(), str(k).encode(), share])


def verify(key: ec.EllipticCurvePublicKey, experiment: str, k: int, peer: Peer) -> None:
    """Raise ``NotAuthentic`` unless client k's registered ``key`` signed its share."""
    items = [experiment.encode(), str(k).encode(), peer.share]
    session.verify(key, peer.signature, NAME, items)
