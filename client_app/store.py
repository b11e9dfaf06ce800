"""State of client k between rounds, on disk.

Files: ``<root>/<experiment>/<k>/<round>/<kind>.safetensors``. Flower's ``Context.state`` is not
used: it is lost with the SuperNode's process and travels with every message.

A message for round t reads the newest state of a round < t, so repeating a round after a crash
gives the same bits. After round t the server can return to the state after rounds t - 1 to
t - ``keep``. The store therefore keeps the rounds after t - ``keep``, and the newest round before
them. A request may name an older round whose state the server relies on. The store keeps that round
as long as the state of the request's own round. A failed write, e.g. on a full disk, leaves the
last good state unchanged.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self, TypeVar, final

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from client_app.node import IN_STATE, LEDGER
from common.exchange.protocol import ModelReply, ToClient, ToServer
from common.exchange.records import Records
from common.files import Damaged, home, write_atomically
from common.settings.section import Value
from common.techniques.privacy import OWNERS_DELTA, gaussian_epsilon, local_cost

T = TypeVar("T", bound=Records)

NONE: Mapping[str, Value] = MappingProxyType({})
HERE = ("out", "state-dir", "plugins", "learnt-dir")  #: settings that name a folder of the run
RUN = "run.json"  #: the run's and the node's settings, beside the state of a client
STORED_REPLIES = 5  #: experiments whose newest reply a ledger stores
NAMED = "also-"
"""Prefix of an empty file next to a round's state; the round that its request named follows."""


class NotAnswered(ValueError):
    """Error for a request that a client's ledger or its owner's limits exclude, in one line."""


@final
class Store:
    """State of one client in one experiment, opened at the start of the work on a message."""

    def __init__(self, root: Path, experiment: str, k: int, keep: int = 1) -> None:
        self._root, self._keep = root, keep
        self.oldest = 0  #: oldest round that may be repeated; 0: one after t - keep
        self.folder = root / experiment / str(k)
        self._seen = self._files()

    def make(self) -> None:
        """Create the folder. Raises ``ValueError`` if it cannot be written."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def rounds(self) -> list[int]:
        """Return the rounds with state, ascending."""
        return sorted({int(path.parent.name) for path in self._files()})

    def newest(self, t: int) -> int:
        """Return the newest round ≤ t with state; 0: there is none."""
        return max((past for past in self.rounds() if past <= t), default=0)

    def load_state(self, t: int, kind: type[T]) -> T | None:
        """Return the newest state of type ``kind`` of a round < t; None if there is none.

        Raises ``ValueError`` naming the file if it is damaged.
        """
        self.make()
        for past in reversed(self.rounds()):
            path = self._path(past, kind)
            if past < t and path.exists():
                return kind.load(path)
        return None

    def load_state_of(self, t: int, kind: type[T]) -> T:
        """Return the state of type ``kind`` of round t.

        Raises ``ValueError`` naming the file if it is missing or damaged.
        """
        path = self._path(t, kind)
        if not path.exists():
            raise Damaged(f"{path} is missing: it is this client's state of round {t}")
        return kind.load(path)

    def save_state(self, t: int, state: Records, also: int = 0) -> None:
        """Write ``state`` of round t atomically; delete rounds that no message can need again.

        ``also``: an older round, kept as long as round t may be repeated. Rounds after t are
        deleted: they were undone, or belong to an earlier run of the same name.

        Raises ``ValueError`` if the state cannot be written, or if another process wrote state of
        round t or later in the meantime.
        """
        path = self._path(t, type(state))
        self._check_alone(t)
        self.make()
        try:
            path.parent.mkdir(exist_ok=True)
            if also:
                (path.parent / f"{NAMED}{also}").touch(0o600)
            write_atomically(path, state.pieces(), private=True)
        except OSError as error:
            with contextlib.suppress(OSError):  # the folder may contain state of another kind
                (path.parent / f"{NAMED}{also}").unlink(missing_ok=True)
                path.parent.rmdir()
            raise self._unwritable(error) from error
        self._seen[path] = path.stat().st_mtime_ns
        needed = self._needed(t)
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and int(folder.name) not in needed:
                shutil.rmtree(folder)

    def describe(self, settings: Mapping[str, Value], node: Mapping[str, Value]) -> None:
        """Store the run config and the node's own settings beside the state, for an export.

        They do not say where the folder is, so that it can be moved.
        """
        parts = {"settings": settings, "node": node}
        kept = {
            name: {k: v for k, v in part.items() if k not in HERE} for name, part in parts.items()
        }
        content = json.dumps(kept).encode()
        path = self.folder / RUN
        with contextlib.suppress(OSError):  # a full disk: only an export needs the file
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content, private=True)

    def forget(self) -> None:
        """Delete the state of all rounds. Raises ``ValueError`` if it cannot be deleted."""
        try:
            for folder in {path.parent for path in self._files()}:
                shutil.rmtree(folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def _needed(self, t: int) -> set[int]:
        """Return the rounds whose state round t, a later or a repeated round may read."""
        past = [r for r in self.rounds() if r <= t]
        last = min(t - self._keep, self.oldest - 1) if self.oldest else t - self._keep
        first = [r for r in past if r <= last][-1:]
        recent = [r for r in past if r > last]
        needed = {*first, *recent}
        folders = (self.folder / str(r) for r in recent)
        named = (path.name for folder in folders for path in folder.glob(f"{NAMED}*"))
        return needed | {int(name.removeprefix(NAMED)) for name in named}

    def _check_alone(self, t: int) -> None:
        for path, changed in self._files().items():
            if int(path.parent.name) >= t and self._seen.get(path) != changed:
                raise ValueError(
                    f"{path} was written by another process while this one worked on round {t}; "
                    "its result is discarded"
                )

    def _unwritable(self, error: OSError) -> Damaged:
        return Damaged(f"state-dir {self._root} cannot be written: {error.strerror}")

    def _path(self, t: int, kind: type[Records]) -> Path:
        return self.folder / str(t) / f"{kind.kind}.safetensors"

    def _files(self) -> dict[Path, int]:
        """Return the state files, each with the time of its last change in ns."""
        files: dict[Path, int] = {}
        for path in self.folder.glob("*/*.safetensors") if self.folder.is_dir() else ():
            if path.parent.name.isdigit() and not path.name.startswith("."):
                with contextlib.suppress(OSError):  # another process may delete it meanwhile
                    files[path] = path.stat().st_mtime_ns
        return files


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


@final
class _Newest(_Content):
    """The newest round that a client answered in one experiment."""

    round: int
    requests: dict[str, str]  #: digest of the newest request by message type
    reply: str = ""  #: file name of the stored reply; empty: none is stored
    kind: str = ""  #: kind of the stored reply


@final
class _Answered(_Content):
    """Content of a ledger."""

    rounds: int = 0  #: answered rounds; a round counts again for each further request
    cost: float = 0.0  #: sum of the rounds with noise, see ``gaussian_epsilon``
    noisy: dict[str, _Newest] = {}  #: rounds with noise by experiment, the last answered at the end
    plain: dict[str, _Newest] = {}  #: rounds without noise by experiment, as far as they count

    def of(self, z: float) -> dict[str, _Newest]:
        """Return the rounds of requests with noise z."""
        return self.noisy if z else self.plain


@final
class Ledger:
    """The rounds that one client has answered in all experiments, in a folder of its node.

    A server chooses the experiment's name, the round and the weights of a request. The node's
    configuration alone chooses the folder, so that no server can begin a new ledger. A round is
    recorded before its reply leaves. A reply with noise is stored: the same request gets the same
    bytes again, and another request for that round or an earlier one is refused. Requests without
    noise are counted only, if the owner limits rounds.
    """

    def __init__(self, folder: Path, max_rounds: int = 0, max_epsilon: float = 0.0) -> None:
        self.folder, self._path = folder, folder / "ledger"
        self._max_rounds, self._max_epsilon = max_rounds, max_epsilon

    @classmethod
    def of(cls, node: Mapping[str, Value], k: int, state: Path) -> Self:
        """Return the ledger of client k. ``node``: its node's own configuration, without the run's;
        ``state``: folder of the client's state."""
        place = str(node.get("ledger", "")) or os.environ.get(LEDGER, "")
        folder = Path(place or home() / ".fedmosaic" / "ledger") / str(k)
        rounds, epsilon = int(node.get("max-rounds", 0)), float(node.get("max-epsilon", 0.0))
        return cls(state / "ledger" if place == IN_STATE else folder, rounds, epsilon)

    def check(self, experiment: str, t: int, z: float) -> str:
        """Return what was answered so far, in one line; empty without noise.

        ``t``: the round after which a run starts or resumes; ``z``: the noise of its replies, 0
        without. Raises ``NotAnswered``, one line, if this client can answer no further round of it.
        """
        if not self._is_needed(z):
            return ""
        answered = self._read()
        past = answered.of(z).get(experiment)
        if past is None or past.round <= t:  # else the next request may be a repetition
            self._check_limits(answered, z)
        if z and past is not None and past.round > t + 1:
            raise NotAnswered(
                f"experiment = {experiment!r}: this client has answered its round {past.round}, "
                f"and the run goes on after round {t}; choose another name"
            )
        epsilon = gaussian_epsilon(answered.cost)
        told = f"over all runs this client has answered {answered.rounds} rounds"
        return f"{told}, with noise: ε = {epsilon:.3g} at δ = {OWNERS_DELTA:g}" if z else ""

    def answer(
        self,
        kind: str,
        request: ToClient,
        z: float,
        work: Callable[[], ToServer],
        settings: Mapping[str, Value] = NONE,
    ) -> ToServer:
        """Return the stored reply to ``request``, or record and return ``work()``.

        ``kind``: message type; ``z``: noise of the reply, 0 without; ``settings``: those on which a
        reply without noise depends, so that a request with others is another one.

        Raises ``NotAnswered``, one line, for a round that was answered before and beyond the
        owner's limits, and ``Damaged`` if the ledger cannot be read or written.
        """
        if not self._is_needed(z):
            return work()
        sha = hashlib.sha256(b"" if z else json.dumps(dict(settings)).encode())
        for piece in request.pieces():
            sha.update(piece)
        digest = sha.hexdigest()
        with self._locked():
            reply = self._stored(self._read(), kind, request, digest, z)
        if reply is not None:
            return reply
        reply = work()
        with self._locked():  # another process may have answered meanwhile
            answered = self._read()
            former = self._stored(answered, kind, request, digest, z)
            if former is None:
                self._record(answered, kind, request, digest, reply, z)
        return former or reply

    def _is_needed(self, z: float) -> bool:
        return bool(z or self._max_rounds or self._max_epsilon)

    def _stored(
        self, answered: _Answered, kind: str, request: ToClient, digest: str, z: float
    ) -> ToServer | None:
        """Return the stored reply; None if the request may be answered, else ``NotAnswered``."""
        past = answered.of(z).get(request.experiment)
        if not self._counts(past, kind, request, digest) and not z:
            return None
        if z and past is not None and request.t <= past.round:
            asked = f"experiment = {request.experiment!r}: round {request.t}"
            if request.t < past.round:
                raise NotAnswered(f"{asked} is before round {past.round}, which was answered")
            if past.requests.get(kind) != digest:
                raise NotAnswered(f"{asked} was answered before, and this is another request")
            if not past.reply:
                raise NotAnswered(f"{asked} was answered before, and its reply is not stored")
            return _reply_class(past.kind).load(self.folder / past.reply)
        self._check_limits(answered, z)
        return None

    @staticmethod
    def _counts(past: _Newest | None, kind: str, request: ToClient, digest: str) -> bool:
        """Return whether a request is a further round: not the newest one in this experiment.

        The second exchange belongs to its round, and so does a repetition of the newest request.
        """
        if past is None or past.round != request.t:
            return True
        return past.requests.get(kind, digest) != digest

    def _check_limits(self, answered: _Answered, z: float) -> None:
        """Raise ``NotAnswered`` if the owner's limits allow no further round."""
        if 0 < self._max_rounds <= answered.rounds:
            raise NotAnswered(
                f"max-rounds = {self._max_rounds} of this client's owner: it has answered "
                f"{answered.rounds} rounds, over all runs"
            )
        if not self._max_epsilon:
            return
        limit = f"max-epsilon = {self._max_epsilon:g} of this client's owner"
        if not z:
            raise NotAnswered(f'{limit}: privacy.mode = "local" is required')
        if (after := gaussian_epsilon(answered.cost + local_cost(z))) > self._max_epsilon:
            raise NotAnswered(
                f"{limit}: another round makes ε = {after:.3g} at δ = {OWNERS_DELTA:g}, over all "
                "runs"
            )

    def _record(
        self,
        answered: _Answered,
        kind: str,
        request: ToClient,
        digest: str,
        reply: ToServer,
        z: float,
    ) -> None:
        past = answered.of(z).pop(request.experiment, None)
        if self._counts(past, kind, request, digest):
            answered.rounds += 1
            answered.cost += local_cost(z) if z else 0.0
        same = past.requests if past is not None and past.round == request.t else {}
        newest = _Newest(round=request.t, requests={**same, kind: digest})
        if z:
            newest.reply, newest.kind = f"{digest[:32]}.reply", reply.kind
        answered.of(z)[request.experiment] = newest
        stored = [one for one in answered.noisy.values() if one.reply]
        for one in stored[:-STORED_REPLIES]:
            one.reply = ""
        try:
            if z:
                write_atomically(self.folder / newest.reply, reply.pieces(), private=True)
            body = answered.model_dump_json().encode()
            seal = hashlib.sha256(body).hexdigest().encode()
            write_atomically(self._path, body + b"\n" + seal + b"\n", private=True)
            needed = {one.reply for one in stored}
            for path in self.folder.glob("*.reply"):
                if path.name not in needed:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _read(self) -> _Answered:
        """Return the content of the ledger; raise ``Damaged`` if it is not as it was written."""
        try:
            body, seal, rest = self._path.read_bytes().split(b"\n")
            if rest or hashlib.sha256(body).hexdigest().encode() != seal:
                raise ValueError
            return _Answered.model_validate_json(body)
        except FileNotFoundError:
            return _Answered()
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        except (ValueError, ValidationError):
            why = "is damaged"
        raise Damaged(
            f"{self._path} {why}; without it this client does not know what it has answered, so it "
            "answers no round"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Make the folder, and let no other process use the ledger within the block."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / "ledger.lock", mode=0o600)
            lock.acquire()
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def _unwritable(self, error: OSError) -> Damaged:
        return Damaged(f"ledger {self.folder} cannot be written: {error.strerror}")


def _reply_class(kind: str) -> type[ModelReply]:
    """Return the class of replies of this kind."""
    classes = [ModelReply]
    for one in classes:
        classes += one.__subclasses__()
    return next(one for one in classes if one.kind == kind)
