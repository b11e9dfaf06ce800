"""Keys of pairs of clients: agreement, derivation by attempt, and signatures.

Every client has an X25519 share for a run, which the server relays. From the secret of a pair HKDF
derives one key for each attempt. It reveals nothing of the keys of other attempts, so that a client
can reveal the key of a lost peer. The *context* of an attempt is a digest of everything that its
clients must agree on. Clients with different contexts have masks that do not cancel.
"""

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

NAME = "fedmosaic secure 1"
"""Prefix of all derived and signed data, with the version of the protocol."""
KEY = 32  #: bytes of every key
SHARE = KEY + TAG  #: bytes of an encrypted share of a self mask's key
LONGEST = 111  #: bytes of a signature with a key on P-384, at most 104, and padding; P-521: 139
ROW = 2 + KEY + 1 + LONGEST  #: bytes of a client: number, share, length of the signature, signature
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

    def to_bytes(self) -> bytes:
        """Return the attempt in a form whose length depends on the number of clients only."""
        rows = (
            b"".join(
                (k.to_bytes(2), p.share, len(p.signature).to_bytes(1), p.signature.ljust(LONGEST))
            )
            for k, p in sorted(self.peers.items())
        )
        return self.counter.to_bytes(8) + self.most.to_bytes(8) + b"".join(rows)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the attempt from ``to_bytes``; raise ``ValueError`` if it is malformed."""
        counter, most, rows = int.from_bytes(data[:8]), int.from_bytes(data[8:16]), data[16:]
        peers: dict[int, Peer] = {}
        for start in range(0, len(rows), ROW):
            row = rows[start : start + ROW]
            signature = row[3 + KEY : 3 + KEY + row[2 + KEY]] if len(row) == ROW else b""
            peers[int.from_bytes(row[:2])] = Peer(row[2 : 2 + KEY], signature)
        attempt = cls(counter, most, peers)
        if not peers or not most or attempt.to_bytes() != data:
            raise ValueError("the request has no valid attempt of a secure sum")
        return attempt

    def context(self, experiment: str, job: bytes, start: StateDict) -> bytes:
        """Return the digest of what the clients must agree on.

        ``start``: the received weights; ``job``: digest of everything else that decides the
        training. So a server gains nothing by sending other weights to some clients (Pasquini et
        al., "Eluding Secure Aggregation in Federated Learning via Model Inconsistency", CCS 2022),
        nor by asking them for other work, so that the sum would be the update of a single one.
        """
        items = [NAME.encode(), experiment.encode(), job, self.to_bytes()]
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
