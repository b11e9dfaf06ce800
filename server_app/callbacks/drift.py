"""Measure the drift of the clients' models in every round (``score.drift``)."""

from typing import final

from server_app.callbacks import RunCallback
from server_app.scoring import drift


@final
class Drift(RunCallback):
    """Measurement of each round's drift."""

    def after_replies(self) -> None:
        """Write the drift of the valid replies to the entry."""
        run = self.run
        if run.config.score.drift:
            run.entry.drift = drift.measure(run.method, run.sent, run.good)
