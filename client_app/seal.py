"""Checking, opening and sealing of a client's messages.

The node's own configuration, which no relay can change, names two files: ``key`` is the registered
``K.key``, ``ca`` is ``ca.crt``. With them, the client accepts only messages that a ServerApp of
that authority sealed.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import filelock
from flwr.app import Context, Message, RecordDict

from common.exchange.seal import body, files, session
from common.exchange.seal.body import NotAuthentic
from common.exchange.seal.session import Keys, Offer, Place, Signed
from common.files import write_atomically
from common.settings.section import Value

ROOT = Path(__file__).resolve().parents[1]  #: root folder of the app bundle


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
    def admit(self, folder: Path) -> None:
        """Raise ``ValueError`` if the message was received before.

        ``folder``: the client's folder in the experiment.
        """

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

    def admit(self, folder: Path) -> None: ...

    def answer(self, content: RecordDict) -> RecordDict:
        return content

    def failure(self, reason: str) -> RecordDict | None:
        return None


@final
@dataclass(frozen=True)
class SealedMessage(OpenedMessage):
    """A message that a ServerApp of this client's authority sealed.

    ``accept``: extra fields of the reply to a census request; None for other messages.
    """

    content: RecordDict
    offer: Offer
    keys: Keys
    place: Place
    accept: Mapping[str, int | bytes] | None

    def check_settings(self, settings: Mapping[str, Value]) -> None:
        if session.config_digest(settings) != self.offer.config:
            raise ValueError("the received run config differs from the ServerApp's: it was changed")
        if self.accept is not None and _app() != self.offer.app:
            raise ValueError("the received app bundle differs from the ServerApp's: it was changed")

    def check_experiment(self, experiment: str) -> None:
        if experiment != self.offer.experiment:
            raise ValueError(f"the offer is for the experiment {self.offer.experiment!r}")

    def admit(self, folder: Path) -> None:
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with filelock.FileLock(folder / "seal.lock", mode=0o600):
                self._admit(folder / "seal.json")
        except OSError as error:
            raise ValueError(f"{folder} cannot be written: {error.strerror}") from error

    def _admit(self, path: Path) -> None:
        at, n = json.loads(path.read_bytes()) if path.exists() else (0, 0)
        if self.offer.at < at:
            raise ValueError(
                "the ServerApp's offer is older than one that this client received before: it was "
                "replayed, or the server's clock went back"
            )
        if self.offer.at == at and self.place.n <= n and self.accept is None:
            raise ValueError(
                f"message {self.place.n} of the session came after message {n}: it was replayed "
                "or delayed"
            )
        newest = self.place.n if self.offer.at > at else max(n, self.place.n)
        write_atomically(path, json.dumps([self.offer.at, newest]).encode(), private=True)

    def answer(self, content: RecordDict) -> RecordDict:
        more = self.accept or {}
        return session.seal(body.encrypt(content), self.keys, self.place, "up", more)

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
    return _unsealed(message, int(node.get("partition-id", -1)), node)


def _unsealed(message: Message, k: int, node: Mapping[str, Value]) -> SealedMessage:
    content = message.content
    try:
        key = files.ssh_key(Path(str(node["key"])))
        authority = files.read_certificate(Path(str(node["ca"])))
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    header, kind = session.header(content), message.metadata.message_type
    signed = Signed(
        session.field(header, "offer", bytes), session.field(header, "signature", bytes)
    )
    offer = Offer.from_bytes(signed.text)
    try:
        server = files.server_app_key(session.from_text(offer.certificate), authority)
    except ValueError as error:
        raise NotAuthentic(f"the message is not from a trusted ServerApp: {error}") from None
    allowed = str(node.get("server-keys", files.fingerprint(server))).split(",")
    if (fingerprint := files.fingerprint(server)) not in allowed:
        raise NotAuthentic(f"the ServerApp's key {fingerprint} is none of server-keys: {allowed}")
    session.verify(server, signed.signature, "offer", [signed.text])
    own = session.own_share(key, offer.experiment)
    share = session.public(own)
    keys = session.agree(own, session.from_text(offer.share), signed, k, share)
    request = session.field(header, "request", bytes)
    if kind == "query.hello":
        if session.hello_digest(content) != offer.hello:
            raise NotAuthentic("the census request differs from the one that the ServerApp signed")
        place = Place(offer.experiment, 0, k, kind, 0, request)
        parts = [*signed.parts, str(k).encode(), share, request]
        signature = session.sign(key, "accept", parts)
        accept: dict[str, int | bytes] = {"k": k, "share": share, "signature": signature}
        return SealedMessage(content, offer, keys, place, accept)
    t, n = session.field(header, "t", int), session.field(header, "n", int)
    place = Place(offer.experiment, t, k, kind, n, request)
    return SealedMessage(session.unseal(content, keys, place, "down"), offer, keys, place, None)
