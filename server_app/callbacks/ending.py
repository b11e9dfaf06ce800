"""End a run at a target, or without progress (``score.stop`` and ``score.patience``)."""

from collections.abc import Sequence
from typing import final

from common.exchange.protocol import ScoreReply
from common.journal import Entry
from server_app.callbacks import RunCallback
from server_app.method import Client


@final
class Ending(RunCallback):
    """Notes in a round's entry why the primary score ends the run."""

    best = Entry(round=0)  #: entry with the best score so far

    def begin(self, entries: Sequence[Entry]) -> None:
        """Find the best of the rounds so far."""
        self.best = Entry(round=0)
        for entry in entries[1:]:
            self.after_round(entry)

    def after_score(self) -> None:
        """Note the target that is reached, or the rounds without a new best score."""
        entry, score = self.run.entry, self.run.config.score
        accuracy = entry.primary_accuracy
        if score.ends(accuracy):
            entry.reached = score.target
        since = entry.round - self.best.round
        if accuracy is not None and 0 < score.patience <= since and not self._is_best(entry):
            entry.stalled = since

    def after_client_scores(self, good: Sequence[tuple[Client, ScoreReply]]) -> None:
        """Do the same where the clients' scores count."""
        self.after_score()

    def after_round(self, entry: Entry) -> None:
        """Keep the best entry; the census is none."""
        self.best = entry if entry.round and self._is_best(entry) else self.best

    def _is_best(self, entry: Entry) -> bool:
        """Return whether an entry has a primary accuracy, above the best one if there is one."""
        new, old = entry.primary_accuracy, self.best.primary_accuracy
        return new is not None and (old is None or new > old)
