"""Report a collapsed accuracy, or repeat its round (``score.collapse``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from common.journal import Entry
from server_app.callbacks import RunCallback
from server_app.scoring.collapse import collapse
from server_app.stopped import CollapsedRound

if TYPE_CHECKING:
    from server_app.strategy import MethodStrategy

log = logging.getLogger("flwr.fedmosaic")


@final
class Collapse(RunCallback):
    """Comparison of each accuracy of the server's model with the former ones."""

    def __init__(self, run: MethodStrategy) -> None:
        super().__init__(run)
        self.accuracies: list[float] = []  #: of the scored rounds so far

    def begin(self, entries: Sequence[Entry]) -> None:
        """Take the accuracies of the rounds so far."""
        self.accuracies = []
        for entry in entries[1:]:
            self.after_round(entry)

    def after_score(self) -> None:
        """Report a collapsed accuracy; raise ``CollapsedRound`` to repeat the round.

        The round is repeated if ``score.collapse`` wants it and a client stands out.
        """
        run, entry, reaction = self.run, self.run.entry, self.run.config.score.collapse
        off = reaction == "off" or run.private or run.method.one_shot
        if off or entry.accuracy is None:
            return
        before = collapse(entry.accuracy, self.accuracies, run.task.num_classes)
        if before is None:
            return
        line = f"round {entry.round}: the accuracy collapsed to {entry.accuracy:.4f}"
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
        """Keep the accuracy of a scored round; the census is none."""
        if entry.round and entry.accuracy is not None:
            self.accuracies.append(entry.accuracy)
