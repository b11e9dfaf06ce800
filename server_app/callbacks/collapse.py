"""Detect a collapsed score from the scores before it (``score.collapse``).

A client can ruin the model with updates that are neither refused nor make the loss absurd. Only
scores in the journal decide, so a resumed run decides as an uninterrupted one. The window is
smaller than the default of ``keep``: checkpoints from before the collapse remain. docs/hostile.md
has the measured rate of false alarms.
"""

import logging
import statistics
from collections.abc import Sequence
from typing import final

from common.journal import Entry
from server_app.callbacks import RunCallback
from server_app.run import Run
from server_app.stopped import CollapsedRound

log = logging.getLogger("flwr.fedmosaic")

WINDOW, FEWEST = 4, 3  #: the former scores to compare with, and the fewest that are meaningful
RANGES = 3.0
"""A drop is larger than this multiple of the window's range. The accuracy of noisy runs and of runs
that still learn has a wide range."""
SHARE = 0.2  #: a drop is larger than this share of what the model has learnt beyond a guess


def collapse(
    score: float, former: Sequence[float], chance: float, *, higher: bool = True
) -> float | None:
    """Return the score from which ``score`` collapsed, or None if it did not.

    ``former``: the scores of all scored rounds before; ``chance``: the score of a guess;
    ``higher``: whether a larger score is better. The result is the median of the last ``WINDOW``.
    """
    sign = 1 if higher else -1
    window = former[-WINDOW:]
    if len(window) < FEWEST:
        return None
    median = statistics.median(window)
    learnt = sign * (median - chance)
    drop = max(RANGES * (max(window) - min(window)), SHARE * learnt)
    return median if learnt > 0 and sign * (median - score) > drop else None


@final
class Collapse(RunCallback):
    """Comparison of each score of the server's model with the former ones."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.scores: list[float] = []  #: of the scored rounds so far

    def begin(self, entries: Sequence[Entry]) -> None:
        """Take the scores of the rounds so far."""
        self.scores = []
        for entry in entries[1:]:
            self.after_round(entry)

    def after_score(self) -> None:
        """Report a collapsed score; raise ``CollapsedRound`` to repeat the round.

        The round is repeated if ``score.collapse`` wants it and a client stands out.
        """
        run, entry, reaction = self.run, self.run.entry, self.run.config.score.collapse
        off = reaction == "off" or run.private or run.method.one_shot
        score, learnt = entry.score("global"), run.task.objective
        if off or score is None:
            return
        higher = learnt.primary.higher
        before = collapse(score, self.scores, learnt.chance, higher=higher)
        if before is None:
            return
        line = f"round {entry.round}: the {learnt.primary.title} collapsed to {score:.4f}"
        collapsed = CollapsedRound(f"{line} from {before:.4f}", entry.round)
        try:
            warning = run.plan(collapsed).why
        except CollapsedRound as impossible:
            warning = str(impossible)
        else:
            if reaction == "undo":
                raise collapsed
        log.warning(warning)
        entry.notes = [warning]

    def after_round(self, entry: Entry) -> None:
        """Keep the score of a scored round; the census is none."""
        if entry.round and (score := entry.score("global")) is not None:
            self.scores.append(score)
