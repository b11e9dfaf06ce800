"""Sealed messages: keys, sessions, what was asked of whom, and replies that are authentic.

A session begins with the answer to a hello and ends with the next hello that the client answers.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from common.errors import LONGEST, first_line
from common.exchange.records import array_bytes, count_bytes
from common.exchange.seal import files, session
from common.exchange.seal.body import Body, NotAuthentic, encrypt
from common.exchange.seal.session import Keys, Offer, Place, Signed
from common.journal import Failure
from common.settings.config import Config
from common.settings.section import Value
from server_app.messaging.channel import HELLO, Channel, Exchanged, Messages, check_size

TRUST = "FEDMOSAIC_TRUST"
"""The variable of the ServerApp's environment that names the folder of its key."""
ROOT = Path(__file__).resolve().parents[2]  #: of the bundle

log = logging.getLogger("flwr.fedmosaic")


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
class SealedChannel(Channel):
    """Payloads travel encrypted and signed, and only authentic replies are used.

    Flower's SuperLink stores the first reply to a message, whoever sent it. So a client without an
    authentic reply in time is asked once more under a new message id, which nobody else knows.

    ``settings``: the run config as it came.
    """

    def __init__(
        self, config: Config, experiment: str, trust: Trust, settings: Mapping[str, Value]
    ) -> None:
        super().__init__(config, experiment)
        self._trust, self._digest = trust, session.config_digest(settings)
        self._at = 0
        self._asked_all = RecordDict()  # the newest hello
        self._hellos: dict[int, _Hello] = {}
        self._met: dict[int, int] = {}  # which client has answered a hello, by node
        self._sessions: dict[int, _Session] = {}
        self._asked: dict[int, tuple[Body, Place]] = {}  # what may be answered, by client

    @cached_property
    def _app(self) -> str:
        return session.app_digest(ROOT)

    def hello(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        """A new offer with the hello that it is for, by node."""
        self._asked_all = content
        own, self._at = X25519PrivateKey.generate(), max(time.time_ns(), self._at + 1)
        text = Offer(
            experiment=self.experiment,
            share=session.to_text(session.public(own)),
            nonce=secrets.token_hex(session.REQUEST),
            at=self._at,
            config=self._digest,
            app=self._app,
            hello=session.hello_digest(content),
            certificate=session.to_text(self._trust.certificate),
        ).to_bytes()
        offer = Signed(text, session.sign(self._trust.key, "offer", [text]))
        found: dict[int, RecordDict] = {}
        for node in nodes:
            request = secrets.token_bytes(session.REQUEST)
            self._hellos[node] = _Hello(
                offer, own, Place(self.experiment, 0, -1, HELLO, 0, request)
            )
            header = ConfigRecord({**_header(offer, request)})
            found[node] = RecordDict({**content, session.SEAL: header})
        return found

    def open_hello(self, node: int, content: RecordDict) -> RecordDict:
        """Begins a session with the client whose key signed the answer."""
        asked, about = self._hellos[node], session.header(content)
        k, share = session.field(about, "k", int), session.field(about, "share", bytes)
        parts = [*asked.offer.parts, str(k).encode(), share, asked.place.request]
        signature = session.field(about, "signature", bytes)
        try:
            registered = self._trust.client(k)
        except ValueError as error:
            raise NotAuthentic(f"it claims to be client {k}: {error}") from None
        session.verify(registered, signature, "accept", parts)
        keys = session.agree(asked.own, share, asked.offer, k, share)
        opened = session.unseal(content, keys, replace(asked.place, k=k), "up")
        self._met[node], self._sessions[k] = k, _Session(asked.offer, keys)
        return opened

    def check_peer(self, node: int, k: int) -> None:
        if (key := self._met[node]) != k:
            raise ValueError(f"it says that it is client {k}, with client {key}'s key")

    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        body = encrypt(content)  # once, whoever gets it
        return lambda k: self._address(body, Place(self.experiment, t, k, kind, 0, b""))

    def _address(self, body: Body, to: Place) -> RecordDict:
        """A body as the next message to the client at a place; remembers that it was asked."""
        held = self._sessions[to.k] = replace(self._sessions[to.k], n=self._sessions[to.k].n + 1)
        place = replace(to, n=held.n, request=secrets.token_bytes(session.REQUEST))
        self._asked[to.k] = body, place
        header = {**_header(held.offer, place.request), "t": place.t, "n": held.n}
        return session.seal(body, held.keys, place, "down", header)

    def open(self, k: int, content: RecordDict) -> RecordDict:
        """Client k's packed answer to what it was asked last.

        Raises ``NotAuthentic`` if it is not that; ``ValueError`` if k's own work is malformed.
        """
        return session.unseal(content, self._sessions[k].keys, self._asked[k][1], "up")

    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        """A client whose first reply was forged is among the failures even if its second one is
        good.
        """
        start = time.monotonic()
        good, failures, forged, lost = self._opened(grid, messages, timeout, t)
        in_time = time.monotonic() - start < timeout
        if doubtful := sorted({each.k for each in (*forged, *(lost if in_time else []))}):
            anew = {k: self._again(k, messages[k]) for k in doubtful}
            second = self._opened(grid, anew, timeout, t)
            good |= second[0]
            # an error reply is not signed: its word counts unless the client says otherwise
            lost = [each for each in lost if each.k not in doubtful or each.k in second[0]]
            failures += [each for found in second[1:] for each in found]
        self._asked.clear()  # in packed form it takes as much memory again
        failures += forged + lost
        return dict(sorted(good.items())), sorted(failures, key=lambda failure: failure.k)

    def _again(self, k: int, message: Message) -> Message:
        """A message to client k, or a hello, once more under another name."""
        about, node = message.metadata, message.metadata.dst_node_id
        if about.message_type == HELLO:
            content = self.hello(self._asked_all, [node])[node]
        else:
            content = self._address(*self._asked[k])
            self.count("down", content)
        return Message(content, node, about.message_type, group_id=about.group_id)

    def _opened(
        self, grid: Grid, messages: Messages, timeout: float, t: int
    ) -> tuple[Messages, list[Failure], list[Failure], list[Failure]]:
        """Authentic replies; failures that clients vouch for; replies that are not authentic, or
        too large to find out; and who has no reply.
        """
        replies, lost = self._exchange(grid, messages, timeout, t)
        good: Messages = {}
        said, forged = list[Failure](), list[Failure]()
        for k in list(replies):
            reply, about = replies.pop(k), messages[k].metadata
            try:
                check_size(count_bytes(reply.content), self.config)
            except ValueError as error:
                forged.append(_failure(k, t, f"reply refused: {error}"))
                continue
            try:
                if about.message_type == HELLO:
                    content = self.open_hello(about.dst_node_id, reply.content)
                else:
                    content = self.open(k, reply.content)
            except NotAuthentic as error:
                what = "the answer" if about.message_type == HELLO else f"client {k}'s reply"
                why = f"{what} is not authentic: the SuperLink or a registered node ({error})"
                log.warning(why)
                forged.append(_failure(k, t, why))
                continue
            except ValueError as error:
                said.append(_failure(k, t, f"reply refused: {error}"))
                continue
            self.count("up", reply.content, array_bytes(content))
            self.store.keep(content, count_bytes(content))
            reply.content = content
            if (words := session.failed(content)) is None:
                good[k] = reply
            else:
                said.append(_failure(k, t, words))
        return good, said, forged, lost


def _failure(k: int, t: int, reason: str) -> Failure:
    return Failure(k=k, round=t, reason=first_line(reason, LONGEST))


def _header(offer: Signed, request: bytes) -> dict[str, int | bytes]:
    return {"offer": offer.text, "signature": offer.signature, "request": request}


def claimed(reply: RecordDict) -> int:
    """Which client an answer to a hello is said to be of; 0 if it does not say."""
    try:
        return max(session.field(session.header(reply), "k", int), 0)
    except NotAuthentic:
        return 0
