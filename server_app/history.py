"""The rounds behind a run: go on from a checkpoint, and undo a round that diverged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from common.journal import Undone
from server_app import callbacks
from server_app.stopped import DivergedRound, Stopped
from server_app.storage import resume
from server_app.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    from server_app.strategy import MethodStrategy

log = logging.getLogger("flwr.fedmosaic")


@final
class History:
    """The recorded rounds of ``run``, and the rounds that were undone."""

    def __init__(self, run: MethodStrategy) -> None:
        self.run = run
        self.undone: list[Undone] = []

    def restore(self, saved: Checkpoint) -> None:
        """Restore the state of the run after the round of a checkpoint."""
        run, journal = self.run, self.run.record.journal
        run.entry, self.undone = resume.restore(run.method, journal, saved)
        entries = journal.entries()
        for entry in entries[1:]:
            run.method.selection.add(entry)
        run.users = callbacks.make(run.config.run.callbacks, saved.callbacks)
        for callback in run.callbacks:
            callback.begin(entries)
        run.messenger.channel.experiment = saved.experiment
        run.messenger.kept, run.messenger.after = dict(saved.kept), saved.t

    def go_back(self, diverged: DivergedRound) -> None:
        """Undo rounds and restore the state before them; raise ``diverged`` if that fails."""
        undone, run = self.plan(diverged), self.run
        try:
            saved = resume.undo(undone, self.undone, run.record.folder)
        except ValueError as error:
            log.warning("round %d cannot be undone: %s", undone.round, error)
            raise diverged from error
        run.make()
        self.restore(saved)
        run.membership.restore(saved)
        run.introduce()

    def plan(self, diverged: DivergedRound) -> Undone:
        """Return which round to repeat without which clients; raise ``diverged`` if there is none.

        The raised ``diverged`` names the clients that stand out. It is also raised if the method
        cannot work without these clients.
        """
        run, past = self.run, self.undone
        entries = [*run.record.journal.entries(), run.entry]
        undone = resume.plan(diverged, run.config, entries, run.architectures, past, run.guess)
        excluded = resume.excluded([*past, undone], undone.round)
        try:
            run.method.check_enough([c for c in run.clients if c.k not in excluded])
        except Stopped as error:
            raise type(diverged)(undone.why, diverged.t) from error
        return undone
