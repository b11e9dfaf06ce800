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
    kept = Entry(round=0)  #: entry of the model in ``best.safetensors``

    def begin(self, entries: Sequence[Entry]) -> None:
        """Find the best of the rounds so far, and the one whose model is kept."""
        self.best = self.kept = Entry(round=0)
        stored = self.run.record.best
        for entry in entries[1:]:
            self.best = entry if _is_better(entry, self.best) else self.best
            self.kept = entry if entry.round == stored else self.kept

    def after_score(self) -> None:
        """Note the target that is reached, or the rounds without a new best score."""
        entry, score = self.run.entry, self.run.config.score
        value = entry.primary_score
        if score.ends(value, entry.measure):
            entry.reached = score.target
        since = entry.round - self.best.round
        if value is not None and 0 < score.patience <= since and not _is_better(entry, self.best):
            entry.stalled = since

    def after_client_scores(self, good: Sequence[tuple[Client, ScoreReply]]) -> None:
        """Do the same where the clients' scores count."""
        self.after_score()

    def after_round(self, entry: Entry) -> None:
        """Keep the best entry, and with ``score.keep-best`` its model; the census is none.

        A round that was undone may have replaced the model of an earlier one. Then the next round
        that is scored is kept.
        """
        if _is_better(entry, self.best):
            self.best = entry
        if self.run.config.score.keep_best and _is_better(entry, self.kept):
            weights = self.run.scorer.scored.weights_to_score()
            assert weights is not None, "score.keep-best is refused without a global model"
            self.run.record.add_best(weights, entry.round)
            self.kept = entry


def _is_better(entry: Entry, best: Entry) -> bool:
    """Return whether a round has a primary score, better than that of ``best`` if it has one."""
    new, old = entry.primary_score, best.primary_score
    better = new is not None and (old is None or entry.measure.better(new, old))
    return entry.round > 0 and better
