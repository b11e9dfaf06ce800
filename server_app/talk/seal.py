"""The ServerApp's side of sealed messages: offers, sessions with clients, what was asked of whom.

A session begins with the answer to a hello and ends with the next hello that the client answers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import ConfigRecord, RecordDict

from common.seal import files, session
from common.seal.body import Body, NotAuthentic
from common.seal.session import Keys, Offer, Place, Signed
from common.section import Value

ROOT = Path(__file__).resolve().parents[2]  #: of the bundle
TRUST = "FEDMOSAIC_TRUST"
"""The variable of the ServerApp's environment that names the folder of its key."""


@final
class Trust:
    """The files in ``folder``: ``serverapp.key``, ``serverapp.crt`` and ``clients/K.pub``.

    Raises ``ValueError``, one line, for one that is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._clients = folder / "clients"
        try:
            self.key = files.pem_key(folder / "serverapp.key")
            certificate = files.read_certificate(folder / "serverapp.crt")
        except OSError as error:
            reason = f"{error.filename} cannot be read: {error.strerror}"
            raise ValueError(f"{TRUST} = {folder}: {reason} (see fedmosaic certs)") from None
        if certificate.public_key() != self.key.public_key():
            raise ValueError(f"{TRUST} = {folder}: serverapp.key is not that of serverapp.crt")
        self.certificate = certificate.public_bytes(Encoding.DER)

    def client(self, k: int) -> ec.EllipticCurvePublicKey:
        """Client k's registered key."""
        return files.ssh_public_key(self._clients / f"{k}.pub")


@final
@dataclass(frozen=True)
class _Hello:
    """A hello to one node. ``own``: the ServerApp's X25519 key of the offer."""

    offer: Signed
    own: X25519PrivateKey
    place: Place


@final
@dataclass(frozen=True)
class _Session:
    """With one client; ``n``: how many messages it has had."""

    offer: Signed
    keys: Keys
    n: int = 0


@final
@dataclass(frozen=True)
class _Asked:
    """A message to client k that may be answered."""

    body: Body
    place: Place


@final
class Seal:
    """Seals what goes to the clients of one run, and opens what they answer.

    ``settings``: the run config as it came.
    """

    def __init__(self, trust: Trust, settings: Mapping[str, Value]) -> None:
        self._trust, self._config = trust, session.config_digest(settings)
        self._at = 0
        self._hellos: dict[int, _Hello] = {}
        self._sessions: dict[int, _Session] = {}
        self._asked: dict[int, _Asked] = {}

    @cached_property
    def _app(self) -> str:
        return session.app_digest(ROOT)

    def hello(
        self, content: RecordDict, experiment: str, nodes: Iterable[int]
    ) -> dict[int, RecordDict]:
        """A new offer with the hello that it is for, by node."""
        own, self._at = X25519PrivateKey.generate(), max(time.time_ns(), self._at + 1)
        text = Offer(
            experiment=experiment,
            share=session.to_text(session.public(own)),
            nonce=secrets.token_hex(session.REQUEST),
            at=self._at,
            config=self._config,
            app=self._app,
            hello=session.hello_digest(content),
            certificate=session.to_text(self._trust.certificate),
        ).to_bytes()
        offer = Signed(text, session.sign(self._trust.key, "offer", [text]))
        found: dict[int, RecordDict] = {}
        for node in nodes:
            request = secrets.token_bytes(session.REQUEST)
            place = Place(experiment, 0, -1, "query.hello", 0, request)
            self._hellos[node] = _Hello(offer, own, place)
            found[node] = RecordDict(
                {**content, session.SEAL: ConfigRecord({**_header(offer, request)})}
            )
        return found

    def meet(self, node: int, reply: RecordDict) -> tuple[int, RecordDict]:
        """Who answered a hello, and the packed answer; begins a session with that client.

        Raises ``NotAuthentic``: it is nobody whose key is there.
        """
        asked, about = self._hellos[node], session.header(reply)
        k, share = session.told(about, "k", int), session.told(about, "share", bytes)
        parts = [*asked.offer.parts, str(k).encode(), share, asked.place.request]
        signature = session.told(about, "signature", bytes)
        try:
            registered = self._trust.client(k)
        except ValueError as error:
            raise NotAuthentic(f"it claims to be client {k}: {error}") from None
        session.verify(registered, signature, "accept", parts)
        keys = session.agree(asked.own, share, asked.offer, k, share)
        content = session.unseal(reply, keys, replace(asked.place, k=k), "up")
        self._sessions[k] = _Session(asked.offer, keys)
        return k, content

    def address(self, body: Body, experiment: str, t: int, k: int, kind: str) -> RecordDict:
        """A body as it travels to client k, and remember that k was asked."""
        held = self._sessions[k] = replace(self._sessions[k], n=self._sessions[k].n + 1)
        request = secrets.token_bytes(session.REQUEST)
        place = Place(experiment, t, k, kind, held.n, request)
        self._asked[k] = _Asked(body, place)
        header = {**_header(held.offer, request), "t": t, "n": held.n}
        return session.seal(body, held.keys, place, "down", header)

    def again(self, k: int) -> RecordDict:
        """What client k was asked last, as another message."""
        asked = self._asked[k]
        place = asked.place
        return self.address(asked.body, place.experiment, place.t, k, place.kind)

    def open(self, k: int, reply: RecordDict) -> RecordDict:
        """Client k's packed answer to what it was asked last.

        Raises ``NotAuthentic`` if it is not that; ``ValueError`` if k's own work is malformed.
        """
        return session.unseal(reply, self._sessions[k].keys, self._asked[k].place, "up")

    def forget(self) -> None:
        """Let go of what was asked: in packed form it takes as much memory again."""
        self._asked.clear()


def _header(offer: Signed, request: bytes) -> dict[str, int | bytes]:
    return {"offer": offer.text, "signature": offer.signature, "request": request}


def claimed(reply: RecordDict) -> int:
    """Which client an answer to a hello is said to be of; 0 if it does not say."""
    try:
        return max(session.told(session.header(reply), "k", int), 0)
    except NotAuthentic:
        return 0
