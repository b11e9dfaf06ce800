"""Let clients measure BatchNorm's statistics before a score (``score.bn = "recalibrated"``)."""

from collections.abc import Iterable
from typing import final

from flwr.app import Message

from common.exchange.protocol import StatisticsReply
from server_app.callbacks import RunCallback
from server_app.scoring.recalibrate import Recalibration


@final
class Recalibrate(RunCallback):
    """Exchanges in which clients measure the running statistics of the scored models."""

    measurement: Recalibration

    def before_score(self) -> None:
        """Measure in ``score.passes`` exchanges if a score is due."""
        run, score = self.run, self.run.config.score
        if score.bn != "recalibrated" or not (run.due(score.every) or run.asks_for_scores()):
            return
        last = run.entry.round == run.config.run.rounds
        clients = run.trusted() if last else run.replies.clients
        self.measurement = Recalibration(run.scorer.scored, clients)
        for _ in range(score.passes if self.measurement.measuring else 0):
            run.exchange(self.configure, self.aggregate, "statistics")

    def configure(self, t: int) -> Iterable[Message]:
        """Return the messages of the next pass, for clients with a valid reply in the last pass."""
        request = self.measurement.request()
        return self.run.messenger.make_messages(t, "evaluate.statistics", request).values()

    def aggregate(self, t: int, replies: Iterable[Message]) -> None:
        """Combine the valid replies of a pass.

        Raises ``Stopped`` if fewer are valid than ``min-replies`` requires.
        """
        run, measurement = self.run, self.measurement
        good, refused = run.messenger.open(
            t, replies, StatisticsReply, run.clients, measurement.check, "statistics"
        )
        run.entry.failures = run.entry.failures + refused
        failures = run.entry.failures[::-1]
        run.check_enough(len(good), measurement.measuring, "measurements", failures)
        measurement.take(good)
