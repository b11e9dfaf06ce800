"""Checking, opening and sealing of a client's messages.

The node's own configuration, which no relay can change, names two files: ``key`` is the registered
``K.key``, ``ca`` is ``ca.crt``. With them, the client accepts only messages that a ServerApp of
that authority sealed.

In a deployment every message may start a new process. So the session lies in a file, in a folder
that the node alone decides: a relay that chose the file would choose the keys.
"""

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Self, final

import filelock
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Context, Message, RecordDict

from common.exchange import protocol
from common.exchange.seal import body, files, session
from common.exchange.seal.body import NotAuthentic
from common.exchange.seal.session import Keys, NoSession, Offer, Place
from common.files import Damaged, home, parse_json, write_atomically
from common.settings.section import Value

ROOT = Path(__file__).resolve().parents[1]  #: root folder of the app bundle
HELLO = "query.hello"  #: message type of a hello, the census request
MAX_HOURS = 24
"""Hours between the date of a hello and the client's clock: more than a wrong time zone makes."""
MAX_SKIP = 100_000
"""Messages of a session that a client may miss in a row, which bounds the derivation of keys."""


@cache
def _app() -> str:
    """Return the digest of the bundle, cached because one process may serve many clients."""
    return session.app_digest(ROOT)


class OpenedMessage(ABC):
    """An opened message: its payload ``content``, its checks, and the packing of its reply."""

    content: RecordDict

    @abstractmethod
    def check_settings(self, settings: Mapping[str, Value]) -> None:
        """Raise ``ValueError`` unless the settings and the app are those of the ServerApp's run.

        Call it before anything that the settings name is imported or opened.
        """

    @abstractmethod
    def check_experiment(self, experiment: str) -> None:
        """Raise ``ValueError`` unless the message belongs to the session's experiment."""

    @abstractmethod
    def admit(self) -> None:
        """Raise ``ValueError`` if the message was received before."""

    @abstractmethod
    def answer(self, content: RecordDict) -> RecordDict:
        """Return ``content``, a packed reply, sealed if the message was sealed."""

    @abstractmethod
    def failure(self, reason: str) -> RecordDict | None:
        """Return an error reply with ``reason``; None if Flower's error message should carry it."""


@final
@dataclass(frozen=True)
class PlainMessage(OpenedMessage):
    """A message without a seal, to a client without a key."""

    content: RecordDict

    def check_settings(self, settings: Mapping[str, Value]) -> None: ...

    def check_experiment(self, experiment: str) -> None: ...

    def admit(self) -> None: ...

    def answer(self, content: RecordDict) -> RecordDict:
        return content

    def failure(self, reason: str) -> RecordDict | None:
        return None


@final
@dataclass(frozen=True)
class ClientSession:
    """The client's side of a session, as its file holds it.

    ``at`` and ``config``: the date and the digest of the run config in the hello. ``share``: the
    client's X25519 share; its private half is never stored. ``keys``: of the next message.
    """

    at: int
    config: str
    share: bytes
    keys: Keys

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the session in a file; None without the file, ``Damaged`` for other content."""
        try:
            fields = parse_json(path.read_bytes())
            transcript, secret = (bytes.fromhex(fields[name]) for name in ("transcript", "secret"))
            keys = Keys(transcript, secret, int(fields["n"]))
            share = bytes.fromhex(fields["share"])
            return cls(int(fields["at"]), str(fields["config"]), share, keys)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, OverflowError):
            raise Damaged(f"{path} is damaged: delete it, and a new session begins") from None

    def write(self, path: Path) -> None:
        fields = {"at": self.at, "config": self.config, "share": self.share.hex()}
        keys = {"transcript": self.keys.transcript.hex(), "secret": self.keys.secret.hex()}
        text = json.dumps({**fields, **keys, "n": self.keys.n})
        write_atomically(path, text.encode(), private=True)


@final
@dataclass(frozen=True)
class Hello:
    """Data of a hello: the offer and its bytes; ``key``: the client's signing key."""

    offer: Offer
    text: bytes
    key: ec.EllipticCurvePrivateKey


@final
@dataclass
class SealedMessage(OpenedMessage):
    """A message that a ServerApp of this client's authority sealed.

    ``current``: the session with the keys of this message. ``path``: the session's file. ``hello``:
    None for other messages.
    """

    content: RecordDict
    current: ClientSession
    place: Place
    path: Path
    hello: Hello | None = None

    def check_settings(self, settings: Mapping[str, Value]) -> None:
        if session.config_digest(settings) != self.current.config:
            raise ValueError("the received run config differs from the ServerApp's: it was changed")
        if self.hello is None:
            return
        if _app() != self.hello.offer.app:
            raise ValueError("the received app bundle differs from the ServerApp's: it was changed")
        dates = [datetime.fromtimestamp(s, UTC) for s in (self.current.at / 1e9, time.time())]
        if abs(dates[1] - dates[0]).total_seconds() > MAX_HOURS * 3600:
            sent, now = (f"{date:%Y-%m-%d %H:%M} UTC" for date in dates)
            raise ValueError(
                f"the ServerApp's offer is of {sent}, this client's clock says {now}: it was "
                f"replayed, or a clock is wrong by more than {MAX_HOURS} hours"
            )

    def check_experiment(self, experiment: str) -> None:
        if experiment != self.place.experiment:
            raise ValueError(f"the offer is for the experiment {self.place.experiment!r}")

    def admit(self) -> None:
        try:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            with filelock.FileLock(self.path.with_name("seal.lock"), mode=0o600):
                self._admit()
        except OSError as error:
            reason = f"{self.path.parent} cannot be written: {error.strerror}"
            raise ValueError(reason) from error

    def _admit(self) -> None:
        """Write the keys of the next message over those of this one, or the session of a hello."""
        if self.hello is None:
            now = _session(self.path, self.current.keys.transcript, self.place.n)
            replace(now, keys=now.keys.at(self.place.n + 1)).write(self.path)
            return
        former = ClientSession.read(self.path)
        if former is None or former.at < self.current.at:
            self.current.write(self.path)
            return
        if former.at > self.current.at:
            raise ValueError(
                "the ServerApp's offer is older than one that this client received before: it was "
                "replayed, or the server's clock went back"
            )
        name = session.transcript(self.hello.text, self.place.k, former.share)
        if former.keys.n or former.keys.transcript != name:
            raise ValueError("the session of the ServerApp's offer is in use: it was replayed")
        self.current = former  # a second copy of the hello gets the same share

    def answer(self, content: RecordDict) -> RecordDict:
        more: dict[str, int | bytes | str] = {}
        if self.hello is not None:
            k, share = self.place.k, self.current.share
            signed = [self.hello.text, str(k).encode(), share, self.place.request]
            signature = session.sign(self.hello.key, "accept", signed)
            more = {"k": k, "share": share, "signature": signature}
        return session.seal(body.encrypt(content), self.current.keys, self.place, "up", more)

    def failure(self, reason: str) -> RecordDict | None:
        return self.answer(session.failure(reason))


def open_message(message: Message, context: Context) -> OpenedMessage:
    """Return the opened ``message``.

    Raises a one-line ``ValueError`` for a message that this client must not accept.
    """
    node, content = context.node_config, message.content
    if not {"key", "ca", "server-keys"} & node.keys():
        if session.SEAL in content:
            raise ValueError(
                "the ServerApp seals its messages, but this node has no key: set "
                "key = clients/K.key and ca = ca.crt in the node config"
            )
        return PlainMessage(content)
    for name in ("key", "ca"):
        if name not in node:
            raise ValueError(f"node config {name} is missing: sealing needs both key and ca")
    if session.SEAL not in content:
        raise ValueError(
            "this node has a key, but the message is not sealed: give the ServerApp its key "
            "(FEDMOSAIC_TRUST), or remove key and ca from the node config"
        )
    k, header = int(node.get("partition-id", -1)), session.header(content)
    kind, request = message.metadata.message_type, session.field(header, "request", bytes)
    if kind == HELLO:
        return _hello(content, header, request, k, node)
    experiment = session.field(header, "experiment", str)
    t, n = session.field(header, "t", int), session.field(header, "n", int)
    path = _path(node, experiment, k)
    current = _session(path, session.field(header, "session", bytes), n)
    current = replace(current, keys=current.keys.at(n))
    place = Place(experiment, t, k, kind, n, request)
    opened = session.unseal(content, current.keys, place, "down")
    return SealedMessage(opened, current, place, path)


def _hello(
    content: RecordDict, header: ConfigRecord, request: bytes, k: int, node: Mapping[str, Value]
) -> SealedMessage:
    """Return a hello of a trusted ServerApp, with a new share of the client."""
    try:
        key = files.ssh_key(Path(str(node["key"])))
        authority = files.read_certificate(Path(str(node["ca"])))
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    text = session.field(header, "offer", bytes)
    offer = Offer.from_bytes(text)
    try:
        server = files.server_app_key(session.from_text(offer.certificate), authority)
    except ValueError as error:
        raise NotAuthentic(f"the message is not from a trusted ServerApp: {error}") from None
    allowed = str(node.get("server-keys", files.fingerprint(server))).split(",")
    if (fingerprint := files.fingerprint(server)) not in allowed:
        raise NotAuthentic(f"the ServerApp's key {fingerprint} is none of server-keys: {allowed}")
    session.verify(server, session.field(header, "signature", bytes), "offer", [text])
    if session.hello_digest(content) != offer.hello:
        raise NotAuthentic("the census request differs from the one that the ServerApp signed")
    own = X25519PrivateKey.generate()
    share = session.public(own)
    keys = session.agree(own, session.from_text(offer.share), text, k, share)
    place = Place(offer.experiment, 0, k, HELLO, 0, request)
    current = ClientSession(offer.at, offer.config, share, keys)
    path = _path(node, offer.experiment, k)
    return SealedMessage(content, current, place, path, Hello(offer, text, key))


def _path(node: Mapping[str, Value], experiment: str, k: int) -> Path:
    """Return the file of a session; raise ``NotAuthentic`` if the experiment is no name."""
    if not re.fullmatch(protocol.EXPERIMENT, experiment):
        raise NotAuthentic("its experiment is no name")
    chosen = str(node.get("state-dir", "")) or os.environ.get("FEDMOSAIC_STATE_DIR", "")
    flower = os.environ.get("FLWR_HOME", "") or home() / ".flwr"
    root = Path(chosen) if chosen else Path(flower) / "sessions"
    return root / experiment / str(k) / "session.json"


def _session(path: Path, name: bytes, n: int) -> ClientSession:
    """Return the session whose transcript is ``name`` if it can have a message n after its last."""
    current = ClientSession.read(path)
    if current is None or current.keys.transcript != name or n - current.keys.n > MAX_SKIP:
        raise NoSession("this client does not have the session of the message")
    if n < current.keys.n:
        raise ValueError(
            f"message {n} of the session came after message {current.keys.n - 1}: it was replayed "
            "or delayed"
        )
    return current
