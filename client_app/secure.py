"""The client's side of secure sums: masks on its update, and the answer that removes them.

The node's configuration alone chooses the folder of the client's secrets, beside its ledger: no
server can begin anew there, and a copy of the state folder takes nothing back. The file has the
X25519 key and the counter of the newest attempt. It is written before an answer leaves. A counter
that is not above the stored one is refused, because the key of a pair's mask in that attempt may
have been revealed.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self, final

import filelock
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client_app.participant import Participant
from common.exchange.protocol import MaskedReply, ModelReply, UnmaskReply, UnmaskRequest
from common.exchange.records import StateDict
from common.exchange.seal import files, session
from common.exchange.seal.body import NotAuthentic
from common.exchange.secure import keys, shamir, sums
from common.exchange.secure.keys import KEY, SHARE, Attempt, Peer
from common.files import Damaged, parse_json, write_atomically
from common.techniques.privacy import averaged, flattened
from common.training import costs

CLEAR = ("steps", costs.FLOPS, costs.MEMORY)
"""Metrics that a client sends beside its masked update: costs, which follow from its samples."""


@final
@dataclass(frozen=True)
class Secrets:
    """Content of the file of a client in one experiment.

    ``key``: private X25519 key. ``counter``: of the newest attempt. ``attempt``, ``context`` and
    ``least``, the fewest survivors: of an attempt whose masks this client may help to remove; empty
    after its answer.
    """

    key: bytes
    counter: int = 0
    least: int = 0
    attempt: bytes = b""
    context: bytes = b""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the content of the file, None without one; raise ``Damaged`` for another one."""
        try:
            fields = parse_json(path.read_bytes())
            texts = (fields[name] for name in ("key", "context", "attempt"))
            key, context, attempt = map(bytes.fromhex, texts)
            counter, least = fields["counter"], fields["least"]
            if len(key) != KEY or type(counter) is not int or type(least) is not int:
                raise ValueError
            return cls(key, counter, least, attempt, context)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, OSError):
            why = "without it the client may use a mask twice; choose another experiment"
            raise Damaged(f"{path} cannot be read: {why}") from None

    def write(self, path: Path) -> None:
        fields = {"key": self.key.hex(), "counter": self.counter, "least": self.least}
        more = {"attempt": self.attempt.hex(), "context": self.context.hex()}
        try:
            write_atomically(path, json.dumps({**fields, **more}).encode(), private=True)
        except OSError as error:
            raise Damaged(f"{path} cannot be written: {error.strerror}") from error


@final
class Masking:
    """The secrets of one client in one experiment, and what it does with them."""

    def __init__(self, participant: Participant, experiment: str) -> None:
        self.k, self.options = participant.k, participant.config.secure
        self.experiment, self._node = experiment, participant.own
        self.weights = participant.config.average.weights
        self._path = participant.ledger.folder / "secure" / f"{experiment}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other processes of this client, also those of a copied state."""
        lock = filelock.FileLock(self._path.with_suffix(".lock"), mode=0o600)
        try:
            self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise Damaged(f"{self._path.parent} cannot be written: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    # The census.

    def introduce(self) -> dict[str, object]:
        """Return the fields of the census entry: share, signature and whether peers are checked.

        The key is that of the experiment's name: a hello may be repeated in the middle of a run,
        and masks are new in every attempt by the counter. Raises ``ValueError`` for a registered
        key whose signatures are too long.
        """
        with self._locked():
            own = Secrets.read(self._path)
            if own is None:
                own = Secrets(X25519PrivateKey.generate().private_bytes_raw())
                own.write(self._path)
        share, signature = session.public(X25519PrivateKey.from_private_bytes(own.key)), b""
        if path := self._node.get("key"):
            registered = files.ssh_key(Path(str(path)))
            signature = keys.sign(registered, self.experiment, self.k, share)
            if len(signature) > keys.LONGEST:
                curve = registered.curve.name
                raise ValueError(f"a registered key on {curve} cannot sign for [secure]; use P-384")
        fields = {"secure": share.hex(), "signature": signature.hex()}
        return {**fields, "roster": self._registered is not None}

    @cached_property
    def _registered(self) -> Mapping[int, ec.EllipticCurvePublicKey] | None:
        """Registered keys by client; None without a ``roster``."""
        path = self._node.get("roster")
        return files.read_roster(Path(str(path))) if path else None

    # The first exchange of a round: a masked update.

    def begin(
        self, told: bytes, job: bytes, start: StateDict
    ) -> tuple[Attempt, bytes, dict[int, bytes]]:
        """Record an attempt; return it, its context and the secrets of the pairs by peer.

        ``told``: the request's ``secure``; for ``job`` and ``start`` see ``Attempt.context``.
        Raises ``ValueError``, one line, for an attempt in which this client must not take part.
        """
        attempt = Attempt.from_bytes(told)
        known, own = sorted(attempt.peers), attempt.peers.get(self.k)
        if own is None or known[-1] >= shamir.MOST:
            raise ValueError(f"client {self.k} is no client of the secure sum, or others are none")
        if len(known) < self.options.fewest:
            raise ValueError(
                f"secure.fewest = {self.options.fewest}: the sum would be of {len(known)} clients"
            )
        for k, peer in attempt.peers.items():
            self._check(k, peer)
        context = attempt.context(self.experiment, job, start)
        least = max(self.options.least(len(known)), self.options.fewest)
        with self._locked():
            now = self._secrets()
            if own.share != session.public(X25519PrivateKey.from_private_bytes(now.key)):
                raise ValueError("the server has another X25519 share of this client")
            if attempt.counter <= now.counter:
                raise ValueError(
                    f"attempt {attempt.counter} of a secure sum is not newer than attempt "
                    f"{now.counter}, which this client has answered: it was replayed, or the "
                    "server's clock went back"
                )
            pairs = self._pairs(now, attempt)
            Secrets(now.key, attempt.counter, least, told, context).write(self._path)
        return attempt, context, pairs

    def _check(self, k: int, peer: Peer) -> None:
        """Raise ``ValueError`` unless the roster's key of client k signed the share."""
        if self._registered is None:
            return
        if (key := self._registered.get(k)) is None:
            raise ValueError(f"client {k} is not in this client's roster.pub")
        try:
            keys.verify(key, self.experiment, k, peer)
        except ValueError as error:
            raise NotAuthentic(f"client {k} has not signed its share: {error}") from error

    def _secrets(self) -> Secrets:
        if (now := Secrets.read(self._path)) is None:
            raise Damaged(f"{self._path} is missing: this client was in no census of the run")
        return now

    def _pairs(self, own: Secrets, attempt: Attempt) -> dict[int, bytes]:
        key = X25519PrivateKey.from_private_bytes(own.key)
        peers = attempt.peers.items()
        return {j: keys.pair(key, self.k, p.share, j, self.experiment) for j, p in peers}

    def masked(
        self, told: bytes, job: bytes, start: StateDict, reply: ModelReply, weight: int
    ) -> MaskedReply:
        """Return a reply with its update masked.

        ``told``, ``job`` and ``start``: as for ``begin``, with all entries of the reply;
        ``weight``: this client's weight in the mean. Raises ``ValueError`` as ``begin``,
        ``FloatingPointError`` for numbers that are not finite.
        """
        names = sorted(averaged(reply.w, frozenset(), buffers=True))
        update = flattened(reply.w, names).numpy() - flattened(start, names).numpy()
        # Everything that may fail comes first: a recorded attempt must not be repeated.
        most = Attempt.from_bytes(told).most
        if weight > most:
            raise ValueError(f"this client has weight {weight}, the server says at most {most}")
        whole, clipped = sums.quantised(update * (weight / most), self.options.clip)
        clipped_word = np.array([round(clipped * sums.SHARES)], np.uint32)
        q = np.concatenate([whole, clipped_word])
        attempt, context, pairs = self.begin(told, job, start)
        counter = attempt.counter
        others = {j: keys.of_attempt(pairs[j], counter, context) for j in pairs.keys() - {self.k}}
        b = secrets.token_bytes(KEY)
        y = q + sums.words(b, len(q)) + sums.pair_masks(self.k, others, len(q))
        xs = [j + 1 for j in sorted(pairs)]
        shares = shamir.split(b, self.options.least(len(xs)), xs, secrets.token_bytes)
        sealed = [
            keys.encrypted(shares[j + 1], pairs[j], counter, context, self.k, j)
            for j in sorted(pairs)
        ]
        return MaskedReply(
            metrics={name: value for name, value in reply.metrics.items() if name in CLEAR},
            y=torch.from_numpy(y.view(np.int32)),
            shares=table(sealed, SHARE),
        )

    # The second exchange: the masks are removed.

    def unmask(self, request: UnmaskRequest) -> UnmaskReply:
        """Return this client's shares of the survivors' keys, and its keys with lost clients.

        It answers once in an attempt, because with another list of survivors it would give both
        kinds of secrets of one peer. Raises ``ValueError``, one line, for a list that this client
        must refuse.
        """
        with self._locked():
            now = self._secrets()
            if not now.attempt:
                raise ValueError("this client has no attempt that it has not answered already")
            attempt = Attempt.from_bytes(now.attempt)
            survivors = request.survivors
            if survivors != sorted(set(survivors)) or not set(survivors) <= attempt.peers.keys():
                raise ValueError("the survivors are not clients of the attempt, each once")
            if self.k not in survivors:
                raise ValueError("the survivors lack this client, which has sent its update")
            if len(survivors) < now.least or len(request.shares) != len(survivors):
                raise ValueError(f"{len(survivors)} clients survive, the sum needs {now.least}")
            pairs, counter, context = self._pairs(now, attempt), attempt.counter, now.context
            opened = [
                keys.decrypted(data.numpy().tobytes(), pairs[i], counter, context, i, self.k)
                for i, data in zip(survivors, request.shares, strict=True)
            ]
            lost = sorted(attempt.peers.keys() - set(survivors))
            revealed = [keys.of_attempt(pairs[j], counter, context) for j in lost]
            replace(now, attempt=b"", context=b"").write(self._path)
        return UnmaskReply(shares=table(opened, KEY), pair_keys=table(revealed, KEY))


def table(rows: list[bytes], size: int) -> torch.Tensor:
    """Return rows of ``size`` bytes as a tensor uint8 [rows, size]."""
    data = np.frombuffer(b"".join(rows), np.uint8)
    return torch.from_numpy(data.reshape(-1, size).copy())
