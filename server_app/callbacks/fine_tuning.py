"""Record what the clients' fine-tuning before their scores costs (``finetune.epochs``)."""

from collections.abc import Sequence
from typing import final

from common.exchange.protocol import FineTunedScoreReply, ScoreReply
from server_app import costs
from server_app.callbacks import RunCallback
from server_app.method import Client, mean_metrics


@final
class FineTuning(RunCallback):
    """Mean metrics and costs of the clients' fine-tuning in a round's entry."""

    def after_client_scores(self, good: Sequence[tuple[Client, ScoreReply]]) -> None:
        """Add those of the valid scores."""
        entry, config = self.run.entry, self.run.config
        if config.fine_tunes:
            tuned = [(client, one) for client, one in good if isinstance(one, FineTunedScoreReply)]
            entry.metrics = {**entry.metrics, **mean_metrics(tuned, "finetune")}
            costs.of_clients(entry, config.run, tuned, "finetune")
