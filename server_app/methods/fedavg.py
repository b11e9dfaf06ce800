"""FedAvg, server half, and the round of every method that averages the clients' models.

A round selects clients S_t and sends w. From their w_k it computes

    p_k      n_k, or 1 under ``average.weights = "uniform"``                   weigh
    w̄        Σ_{k∈S_t} p_k w_k / Σ_{k∈S_t} p_k, entry by entry                match, combine
    w        w̄, or a step of the server's optimizer from w towards w̄          step

The settings choose each part. ``GlobalModels`` has what the server sends, scores and saves.
"""

from abc import ABC
from typing import final

from common.exchange.records import StateDict
from common.methods.fedavg import Averaging, Reply
from server_app.aggregation import optimizer
from server_app.aggregation.matching import Joint, T
from server_app.aggregation.mean import average
from server_app.global_weights import GlobalModels
from server_app.method import Client, Metrics, Models, O, Replies


class Averaged(GlobalModels[O, T], ABC):
    """Base class of averaging methods: w ← Σ_{k∈S_t} p_k w_k by the settings of [average].

    A method overrides ``combine`` for another mean, or ``refine`` and ``after`` for later steps.
    """

    def select(self, t: int) -> list[Client]:
        """Return S_t: members drawn by [select], or in secret, each with an equal probability."""
        if self.private is None or self.config.privacy.sampling == "public":
            return super().select(t)
        chosen = self.private.selected(t, self.roster_size)
        return [client for client in self.clients if client.k in chosen]

    def step(self, t: int, replies: Replies[T]) -> Metrics:
        """Replace the models by the step to the mean of round t's uploads.

        With OCA also combine every client's latest upload, which gives ŵ.
        """
        self.t, previous = t, self.models
        moved = self.optimized(previous, self.aggregate(replies, previous))
        sent = replies.as_sent
        self.models, metrics = self.refine(t, sent, moved)
        metrics = {**metrics, **self.after(t, sent)}
        if self.uploads is not None:
            latest = self.latest(t, sent, self.uploads)
            self.overall, _ = self.refine(t, latest, self.aggregate(latest, self.overall))
        return metrics

    def aggregate(self, replies: Replies[T], previous: Models) -> Models:
        """Return the combination of the uploads; ``previous``: the models before the round.

        Networks that share entries are averaged together. An architecture without a client in
        this round stays unchanged.
        """
        if isinstance(self.matching, Joint):
            return self.matching.aggregate(self.t, replies, previous, self.states)
        uploads = {spec: replies.where(self.training(spec)) for spec in previous}
        noisy = self.private is not None
        return {
            spec: self.combine(uploads[spec], w) if len(uploads[spec]) or noisy else w
            for spec, w in previous.items()
        }

    def combine(self, replies: Replies[T], previous: StateDict) -> StateDict:
        """Return the new w of one architecture from its uploads.

        Under differential privacy there may be no upload, otherwise there is at least one.
        """
        options, names = self.config.average, self.trained_names
        states = self.states(replies, previous, names)
        if self.private is not None:
            s = [self.discounts.get(client.k, 1.0) for client in replies.clients]
            return self.private.mean(self.t, states, previous, names, self.roster_size, s)
        p = options.shares(replies.sizes)
        trusted = self.trusted(self.trains(replies.clients[0]), previous, replies.sizes)
        return average(states, p, previous, options, names, trusted)

    def optimized(self, previous: Models, mean: Models) -> Models:
        """Return the models after the step of the server's optimizer, or the mean without one.

        ``previous``: the models before the round; ``mean``: the combination of the uploads.
        """
        options = self.config.average
        if options.server_optimizer == "none":
            return mean
        names, stepped = self.trained_names, dict(mean)
        for spec, w in mean.items():
            moments = self.moments.get(spec, {})
            stepped[spec], kept = optimizer.step(options, previous[spec], w, moments, names)
            self.moments = {**self.moments, spec: kept}
        return stepped


@final
class FedAvg(Averaged[Averaging, Reply]):
    """Server with w ← Σ_{k∈S_t} p_k w_k."""

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return DL-MH's equation 8 for one round: each client's parameters down and up."""
        return sum(2 * self.task.parameters(self.trains(client)) for client in replies.clients)
