"""Jobs in flight of asynchronous rounds: their order on the clock, and their requests on the disk.

An event is the reply of a job, or the moment at which the server notices that a job is lost. Events
are ordered by (microseconds, kind, k, job), so that their order is a function of configuration and
seed.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, final

from common.exchange.protocol import Reply, Request
from common.files import write_atomically
from common.journal import Failure, JsonObject
from server_app.clock.job import Job

REPLY, LOSS = 0, 1  #: kinds of events
FOLDER = "jobs"  #: folder of the requests in a run's folder


@final
class InFlight(JsonObject):
    """A client's job: its ``number`` in the run, the round of its request, its times in µs.

    ``due``: time of its event; None until its reply tells how long it takes. ``request``: file of
    its request. ``is_sent``: whether the client has it; a job that is lost on the clock never was.
    """

    number: int
    k: int
    t: int
    start: int
    due: int | None = None
    kind: int = REPLY
    request: str = ""
    is_sent: bool = True

    @property
    def event(self) -> tuple[int, int, int, int]:
        """Key of its event's place in the order of events."""
        assert self.due is not None, "the time of a job is known before it is compared"
        return self.due, self.kind, self.k, self.number

    @property
    def version(self) -> int:
        """Version of the model that the client trains."""
        return self.t - 1


@final
class Outcome(NamedTuple):
    """What came of a job: a valid reply or the failure, and what the job moved and computed."""

    reply: Reply | None
    failure: Failure | None
    counts: Job


@final
class Requests:
    """Requests of the jobs in flight, a file for each distinct one in the folder ``jobs`` of a run.

    So memory does not grow with the number of versions in flight, and a resumed run can send a job
    again. ``kind``: class of the requests, known with the first one.
    """

    kind: type[Request]

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._t, self._of_round = 0, dict[int, tuple[Request, str]]()  # by id
        self._loaded: dict[str, Request] = {}  #: sent or read since the last step
        self._needed: list[frozenset[str]] = []  #: files of the last checkpoints

    def keep(self, t: int, request: Request, experiment: str) -> str:
        """Store a request of round t, once, with its envelope; return the name of its file."""
        if t != self._t:
            self._t, self._of_round = t, {}
        if id(request) not in self._of_round:
            name, self.kind = f"{t}-{len(self._of_round)}.safetensors", type(request)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            stamped = request.stamped(experiment, t)
            write_atomically(self._folder / name, stamped.pieces(), private=True)
            os.utime(self._folder / name, (t, t))  # its real time may depend on replies
            self._of_round[id(request)] = request, name  # the object too, so that ids stay distinct
            self._loaded[name] = stamped
        return self._of_round[id(request)][1]

    def load(self, name: str) -> Request:
        """Return a request. Raises ``Damaged``, one line, with the path if it cannot be read."""
        if name not in self._loaded:
            self._loaded[name] = self.kind.load(self._folder / name)
        return self._loaded[name]

    def release(self, needed: Iterable[str], checkpoints: int) -> None:
        """Free the memory, and delete files that no job of the last ``checkpoints`` has.

        ``needed``: files of the checkpoint that follows. Those of an earlier process stay as long
        as its checkpoints.
        """
        self._loaded = {}
        if not self._needed:
            self._needed = [frozenset(path.name for path in self._folder.glob("*"))]
        self._needed = [*self._needed, frozenset(needed)][-checkpoints:]
        kept = frozenset[str]().union(*self._needed)
        for path in self._folder.glob("*"):
            if path.name not in kept:
                path.unlink()
