"""Earlier rounds of a run: resume from a checkpoint, and undo a round that diverged."""

import logging
from collections.abc import Sequence
from typing import final

from common.journal import Entry, Undone
from server_app import callbacks
from server_app.callbacks import Callback, RunCallback
from server_app.run import Run
from server_app.stopped import DivergedRound, Stopped
from server_app.storage import resume
from server_app.storage.checkpoint import Checkpoint

log = logging.getLogger("flwr.fedmosaic")


@final
class History:
    """The recorded rounds of ``run``, the rounds that were undone, and the callbacks that follow.

    ``built_in``: the built-in callbacks.
    """

    def __init__(self, run: Run, built_in: Sequence[RunCallback]) -> None:
        self.run, self.built_in = run, built_in
        self.undone: list[Undone] = []
        self.by_user = callbacks.make(run.config.run.callbacks)  #: the user's callbacks, by name

    @property
    def callbacks(self) -> Sequence[Callback]:
        """The built-in callbacks and the user's, in the order of their calls."""
        return [*self.built_in, *self.by_user.values()]

    def begin(self, entries: Sequence[Entry] = ()) -> None:
        """Let the callbacks begin a new run, or go on after ``entries``."""
        for callback in self.callbacks:
            callback.begin(entries)

    def restore(self, saved: Checkpoint) -> None:
        """Restore the state of the run after the round of a checkpoint ``saved``.

        The order matters: callbacks see the journal without the rounds after the checkpoint.
        """
        run, journal = self.run, self.run.record.journal
        run.entry, self.undone = resume.restore(run.method, journal, saved)
        entries = journal.entries()
        # A checkpoint has no state of the selection, which follows from the entries of the rounds.
        for entry in entries[1:]:
            run.method.selection.add(entry)
            run.clock.add(entry)
            run.scorer.remember(entry)
        self.by_user = callbacks.make(run.config.run.callbacks, saved.callbacks)
        self.begin(entries)
        # Requests then name the experiment and the last complete round, by which clients load the
        # right state (``kept``: the round of each client's newest state).
        run.messenger.channel.experiment = saved.experiment
        run.messenger.kept, run.messenger.after = dict(saved.kept), saved.t
        run.restore(saved)

    def go_back(self, diverged: DivergedRound) -> None:
        """Undo rounds and restore the state before them; raise ``diverged`` if that fails."""
        undone, run = self.plan(diverged), self.run
        try:
            saved = resume.undo(undone, self.undone, run.record.folder)
        except ValueError as error:
            log.warning("round %d cannot be undone: %s", undone.round, error)
            raise diverged from error
        run.settle()
        # Start from a new method, as a resumed process does.
        run.make()
        self.restore(saved)
        run.membership.restore(saved)
        run.introduce()

    def plan(self, diverged: DivergedRound) -> Undone:
        """Return which round to repeat without which clients; raise ``diverged`` if there is none.

        The raised ``diverged`` names the clients that stand out. It is also raised if the method
        cannot work without these clients.
        """
        run, earlier = self.run, self.undone  # ``run.guess``: the loss of an untrained model
        entries = [*run.record.journal.entries(), run.entry]
        undone = resume.plan(diverged, run.config, entries, run.architectures, earlier, run.guess)
        excluded = resume.excluded([*earlier, undone], undone.round)
        try:
            run.method.check_enough([c for c in run.clients if c.k not in excluded])
        except Stopped as error:
            raise diverged.with_line(undone.why) from error
        return undone
