"""Sealed messages: keys, sessions, open requests, and authentic replies.

A session begins with a reply to a hello, the census request, and ends with the client's next such
reply. A client that lost its session gets another hello.
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
from common.exchange.seal.session import Keys, Offer, Place
from common.journal import Failure, FailureKind
from common.settings.config import Config
from common.settings.section import Value
from server_app.messaging.channel import CENSUS, Channel, Exchanged, Messages, check_size
from server_app.messaging.exchange import Inbox, kind_of
from server_app.stopped import Stopped

TRUST = "FEDMOSAIC_TRUST"
FORGED = "a reply is not authentic"  #: released reason of a failure
"""Environment variable of the ServerApp: the folder of its key."""
ROOT = Path(__file__).resolve().parents[2]  #: the bundle's folder

log = logging.getLogger("flwr.fedmosaic")


@final
class Trust:
    """Keys in ``folder``: ``serverapp.key``, ``serverapp.crt``, ``clients/K.pub``, and the list
    ``clients/revoked``, which is read at every use of a client's key.

    Raises ``ValueError``, one line, for a missing or damaged file.
    """

    def __init__(self, folder: Path) -> None:
        self._clients = folder / "clients"
        self._revoked = self._clients / files.REVOKED
        try:
            self.key = files.pem_key(folder / "serverapp.key")
            certificate = files.read_certificate(folder / "serverapp.crt")
        except OSError as error:
            reason = f"{error.filename} cannot be read: {error.strerror}"
            raise ValueError(f"{TRUST} = {folder}: {reason} (see fedmosaic certs)") from None
        if certificate.public_key() != self.key.public_key():
            raise ValueError(f"{TRUST} = {folder}: serverapp.key does not match serverapp.crt")
        self.certificate = certificate.public_bytes(Encoding.DER)
        files.read_revoked(self._revoked)
        names = ("ca.crt", "server.crt", "serverapp.crt")
        for line in files.expiry_warnings(folder / name for name in names):
            log.warning(line)

    def client(self, k: int) -> ec.EllipticCurvePublicKey:
        """Return client k's registered key.

        Raises ``ValueError`` if it is missing or revoked, and ``Stopped`` if the list of revoked
        keys cannot be read: without it no client can be trusted.
        """
        path = self._clients / f"{k}.pub"
        key = files.ssh_public_key(path)
        try:
            revoked = files.read_revoked(self._revoked)
        except ValueError as error:
            raise Stopped(str(error)) from None
        if files.fingerprint(key) in revoked:
            raise ValueError(f"its key {path.name} is revoked, see {self._revoked}")
        return key


@final
@dataclass(frozen=True)
class _Census:
    """A census request to one node. ``key``: the ServerApp's X25519 key of the offer, of ``at``."""

    offer: bytes
    at: int
    key: X25519PrivateKey
    place: Place


@final
@dataclass(frozen=True)
class _Session:
    """Session with one client. ``at``: date of its offer; ``keys``: of the next message in it."""

    at: int
    keys: Keys


@final
class SealedChannel(Channel):
    """Channel that encrypts and signs payloads, and uses authentic replies only.

    Flower's SuperLink stores the first reply to a message, whatever node sent it. So a client
    without an authentic reply in time gets its message once more, under a new and secret id.

    ``settings``: the run config as the user wrote it.
    """

    def __init__(
        self, config: Config, experiment: str, trust: Trust, settings: Mapping[str, Value]
    ) -> None:
        super().__init__(config, experiment)
        self._trust, self._digest = trust, session.config_digest(settings)
        self._at = 0
        self._census = RecordDict()  # the newest census request
        self._censuses: dict[int, _Census] = {}  # by node
        self._clients: dict[int, int] = {}  # the client that replied to the census, by node
        self._sessions: dict[int, _Session] = {}  # by client
        self._requests: dict[int, tuple[Body, Place, Keys]] = {}  # the newest request, by client
        self._posted: dict[int, Messages] = {}
        """Messages that were posted with that of each job in flight; an inbox frees contents."""
        self._repeated: set[int] = set()  # clients whose job was sent once more

    @cached_property
    def _app(self) -> str:
        return session.app_digest(ROOT)

    def census_requests(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        """Return the census request with a new offer of a session, by node."""
        self._census = content
        key, self._at = X25519PrivateKey.generate(), max(time.time_ns(), self._at + 1)
        text = Offer(
            experiment=self.experiment,
            share=session.to_text(session.public(key)),
            at=self._at,
            config=self._digest,
            app=self._app,
            hello=session.hello_digest(content),
            certificate=session.to_text(self._trust.certificate),
        ).to_bytes()
        signature = session.sign(self._trust.key, "offer", [text])
        requests: dict[int, RecordDict] = {}
        for node in nodes:
            request = secrets.token_bytes(session.REQUEST)
            place = Place(self.experiment, 0, -1, CENSUS, 0, request)
            self._censuses[node] = _Census(text, self._at, key, place)
            header = {"offer": text, "signature": signature, "request": request}
            seal = ConfigRecord({**header, "version": session.VERSION})
            requests[node] = RecordDict({**content, session.SEAL: seal})
        return requests

    def open_census_reply(self, node: int, content: RecordDict) -> RecordDict:
        """Begin a session with the client whose key signed the reply, and return the content.

        A client that reports a failure has no session, and an old hello's reply ends no newer one.
        A hello has one authentic reply: raise ``NotAuthentic`` for a second one, as for a forged
        one.
        """
        census, header = self._censuses.get(node), session.header(content)
        if census is None:
            raise NotAuthentic("its census request has a reply already")
        k, share = session.field(header, "k", int), session.field(header, "share", bytes)
        signed = [census.offer, str(k).encode(), share, census.place.request]
        signature = session.field(header, "signature", bytes)
        try:
            registered = self._trust.client(k)
        except ValueError as error:
            raise NotAuthentic(f"it claims to be client {k}: {error}") from None
        session.verify(registered, signature, "accept", signed)
        keys = session.agree(census.key, share, census.offer, k, share)
        opened = session.unseal(content, keys, replace(census.place, k=k), "up")
        self._clients[node] = k
        del self._censuses[node]  # with the private half of the share
        former = self._sessions.get(k)
        if session.failed(opened) is None and (former is None or former.at < census.at):
            self._sessions[k] = _Session(census.at, keys.at(1))
        return opened

    def check_client(self, node: int, k: int) -> None:
        if (signer := self._clients.get(node)) != k:
            raise ValueError(f"it says that it is client {k}, with client {signer}'s key")

    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        body = encrypt(content)  # once for all clients
        return lambda k: self._address(body, Place(self.experiment, t, k, kind, 0, b""))

    def _address(self, body: Body, to: Place) -> RecordDict:
        """Return a body sealed as the next message to client ``to.k``, and record the request."""
        current = self._sessions[to.k]
        keys = current.keys
        self._sessions[to.k] = replace(current, keys=keys.at(keys.n + 1))
        place = replace(to, n=keys.n, request=secrets.token_bytes(session.REQUEST))
        self._requests[to.k] = body, place, keys
        header: dict[str, int | bytes | str] = {"session": keys.transcript, "t": place.t}
        header |= {"experiment": place.experiment, "n": place.n, "request": place.request}
        return session.seal(body, keys, place, "down", header)

    def open(self, k: int, content: RecordDict) -> RecordDict:
        """Return client k's packed reply to its newest request.

        Raises ``NotAuthentic`` if it is no reply to that, ``ValueError`` for malformed content and
        for a key that was revoked since the census.
        """
        _, place, keys = self._requests[k]
        opened = session.unseal(content, keys, place, "up")
        self._trust.client(k)
        return opened

    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        """Send messages and return packed replies; for the arguments see ``exchange.exchange``.

        A client with a forged first reply is among the failures even if its second one is good. A
        client that lost its session gets a new one before the message is repeated.
        """
        start = time.monotonic()
        good, failures, forged, lost = self._exchange_once(grid, messages, timeout, t)
        in_time = time.monotonic() - start < timeout
        alone = [failure for failure in lost if failure.kind == "no session"]
        doubtful = sorted({f.k for f in (*forged, *(lost if in_time else alone))})
        if doubtful:
            hellos = {f.k: self._hello(messages[f.k].metadata.dst_node_id) for f in alone}
            for bad in self._exchange_once(grid, hellos, timeout, t)[1:] if hellos else ():
                failures += bad
            repeated = {k: self._repeat(k, messages[k]) for k in doubtful}
            second = self._exchange_once(grid, repeated, timeout, t)
            good |= second[0]
            # an unsigned error reply counts only if the second exchange does not contradict it
            lost = [f for f in lost if f.k not in doubtful or f.k in second[0]]
            failures += [failure for group in second[1:] for failure in group]
        # They hold keys, and take as much memory as the payloads. Nodes in a census have no number.
        for k, message in messages.items():
            if message.metadata.message_type != CENSUS:
                self._requests.pop(k, None)
        failures += forged + lost
        return dict(sorted(good.items())), sorted(failures, key=lambda failure: failure.k)

    def post(self, inbox: Inbox, messages: Messages, t: int) -> None:
        self._posted |= dict.fromkeys(messages, messages)
        super().post(inbox, messages, t)

    def arrived(self, inbox: Inbox) -> Exchanged:
        """Poll an inbox once, and return packed replies; a job is repeated as in ``exchange``.

        Opened failures are of round 0: the caller knows the round of each job.
        """
        inbox.poll()
        replies, lost = inbox.take()
        ended = [*replies, *(failure.k for failure in lost)]
        posted = {k: self._posted.pop(k)[k] for k in ended}
        good, failures, forged = self._open(replies, posted, 0)
        doubtful = [f for f in (*forged, *lost) if f.kind != "late" and f.k not in self._repeated]
        for failure in doubtful:
            k, message = failure.k, posted[failure.k]
            t = int(message.metadata.group_id)
            if failure.kind == "no session":
                hello = {k: self._hello(message.metadata.dst_node_id)}
                refused = self._exchange_once(inbox.grid, hello, inbox.timeout, t)
                failures += [bad for group in refused[1:] for bad in group]
            self._repeated.add(k)
            self.post(inbox, {k: self._repeat(k, message)}, t)
        # an unsigned error reply counts only if the repeated message does not contradict it
        failures += forged + [failure for failure in lost if failure not in doubtful]
        for k in ended:
            if k not in self._posted:
                self._requests.pop(k, None)
                self._repeated.discard(k)
        return good, failures

    def _hello(self, node: int) -> Message:
        return Message(self.census_requests(self._census, [node])[node], node, CENSUS)

    def _repeat(self, k: int, message: Message) -> Message:
        """Return the same message or census request to client k under another message id."""
        about = message.metadata
        if about.message_type == CENSUS:
            return self._hello(about.dst_node_id)
        content = self._address(*self._requests[k][:2])
        self.count("down", content)
        return Message(content, about.dst_node_id, about.message_type, group_id=about.group_id)

    def _exchange_once(
        self, grid: Grid, messages: Messages, timeout: float, t: int
    ) -> tuple[Messages, list[Failure], list[Failure], list[Failure]]:
        """Return authentic replies, and three lists of failures: authentic failures; replies that
        are not authentic or too large to check; missing replies.
        """
        replies, lost = self._exchange(grid, messages, timeout, t)
        pending, self._up = self._up, {}  # of jobs, whose clients may have the same keys
        opened = self._open(replies, messages, t)
        for k in [*self._up]:
            self.receive(k)
        self._up = pending
        return *opened, lost

    def _open(
        self, replies: Messages, messages: Messages, t: int
    ) -> tuple[Messages, list[Failure], list[Failure]]:
        """Return authentic replies to ``messages``, and the first two lists of ``_exchange_once``.

        ``replies`` is emptied, so that only the opened ones stay in memory.
        """
        good: Messages = {}
        failed, forged = list[Failure](), list[Failure]()
        for k in list(replies):
            reply, about = replies.pop(k), messages[k].metadata
            try:
                check_size(count_bytes(reply.content), self.config)
            except ValueError as error:
                forged.append(_failure(k, t, "refused", f"reply refused: {error}"))
                continue
            try:
                if about.message_type == CENSUS:
                    content = self.open_census_reply(about.dst_node_id, reply.content)
                else:
                    content = self.open(k, reply.content)
            except NotAuthentic as error:
                what = "the answer" if about.message_type == CENSUS else f"client {k}'s reply"
                why = f"{what} is not authentic: the SuperLink or a registered node ({error})"
                log.warning(why, extra={"released": FORGED})
                forged.append(_failure(k, t, "not authentic", why, FORGED))
                continue
            except ValueError as error:
                failed.append(_failure(k, t, "refused", f"reply refused: {error}"))
                continue
            self._up[k] = count_bytes(reply.content), array_bytes(content)
            self.store.keep(content, count_bytes(content))
            reply.content = content
            if (reason := session.failed(content)) is None:
                good[k] = reply
            else:
                failed.append(_failure(k, t, kind_of(reason)[0], reason))
        return good, failed, forged


def _failure(k: int, t: int, kind: FailureKind, reason: str, released: str = "") -> Failure:
    shown = first_line(reason, LONGEST)
    return Failure(k=k, round=t, reason=shown, kind=kind, released=released)


def claimed(reply: RecordDict) -> int:
    """Return the client that a census reply names as its sender; 0 if it names none."""
    try:
        return max(session.field(session.header(reply), "k", int), 0)
    except NotAuthentic:
        return 0
