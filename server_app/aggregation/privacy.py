"""The server's part of differential privacy: the noisy mean, selection, the bill, what is withheld.

``central``: clients send their updates as they are; the server bounds each, adds noise to the sum
and keeps single ones to itself. ``local``: a client bounds its update and adds the noise
(``client_app/handler.py``); the server adds up.
"""

import math
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import final

import torch

from common.exchange.records import StateDict
from common.journal import Entry, Privacy
from common.settings.config import Config
from common.settings.extras import imported
from common.settings.options import Privacy as Options
from common.techniques.privacy import Secret, averaged, clipped, flattened, moved, noised

BY_CLIENT = (
    *("client_metrics", "scores", "fairness", "accuracy_covered", "uncovered"),
    *("magnitudes", "undone"),
)
"""What the journal says of clients, or counts over what they hold."""
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]
"""Of the Rényi divergences: integers, for which a sampled Gaussian's is a finite sum."""
BY_SELECTION = ("selected", "replied", "failures", "bytes", "cost")
"""What tells who was selected, or how many."""


@final
class NoisyMean:
    """Round after round of one run, of which ``config.run.out`` keeps the key."""

    def __init__(self, config: Config) -> None:
        self.options, self.config = config.privacy, config
        folder = Path(config.run.out)
        self.secret = Secret.kept(folder) if config.run.resume else Secret.made(folder)
        imported("dp_accounting")

    def mean(
        self,
        t: int,
        states: Iterable[StateDict],
        previous: StateDict,
        parameters: Set[str],
        clients: int,
    ) -> StateDict:
        """w + (Σ_k Δ_k + noise) / m, m the clients that a round expects; no states: noise alone.

        Integer counters, and buffers that are not averaged, stay as they are.
        """
        o = self.options
        names = averaged(previous, parameters, buffers=self.config.average.bn_buffers)
        start = flattened(previous, names)
        total = torch.zeros_like(start)
        for state in states:
            update = flattened(state, names) - start
            total += clipped(update, o.clip) if o.mode == "central" else update
        if o.mode == "central":
            total = noised(total, o.noise_multiplier * o.clip, self.secret, t)
        return moved(previous, names, total / expected(self.config, clients))

    def selected(self, t: int, clients: int) -> list[int]:
        """Each client by itself with probability m / N; possibly nobody."""
        share = expected(self.config, clients) / clients
        return [int(k) for k in (self.secret.uniform(clients, "select", t) <= share).nonzero()[0]]


def expected(config: Config, clients: int) -> int:
    """m, the clients of a round: as many as are selected, or on average."""
    return config.run.per_round or clients


def delta(options: Options, clients: int) -> float:
    """δ: as configured, else N^−1.1, N counted as at least 2."""
    return options.delta or float(max(clients, 2)) ** -1.1


def spent(config: Config, clients: int, rounds: int) -> Privacy:
    """ε and δ after so many rounds.

    Everybody is counted as selected in every round, unless selection is secret. T rounds of the
    Gaussian mechanism are then one with noise z / √T, of which ε is exact (Balle and Wang, ICML
    2018). Rounds with secret selection are composed by Rényi divergences (Mironov, Talwar, Zhang,
    2019), which bound ε from above.

    ``central``: with or without one client. ``local``: a client's update or any other, which lies
    up to 2 C away.
    """
    o = config.privacy
    dp, share, d = imported("dp_accounting"), expected(config, clients) / clients, delta(o, clients)
    z = o.noise_multiplier / (2 if o.mode == "local" else 1)
    epsilon = dp.get_epsilon_gaussian(z / math.sqrt(rounds), d)
    if o.sampling == "secret" and share < 1:
        accountant = imported("dp_accounting.rdp").RdpAccountant(ORDERS)
        accountant.compose(dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z)), rounds)
        epsilon = min(epsilon, accountant.get_epsilon(d))  # who may stay away pays no more
    return Privacy(epsilon=float(epsilon), delta=d)


def withhold(entry: Entry, config: Config, clients: int) -> None:
    """Take from the journal's entry what is not noisy, and write down the bill."""
    options = config.privacy
    if not options.on:
        return
    _drop(entry, BY_CLIENT)
    if entry.clients:
        told = {"n": 0, "n_test": 0, "classes": [], "counts": None}
        entry.clients = [m.model_copy(update=told) for m in entry.clients]
    if entry.round:
        if options.sampling == "secret":
            _drop(entry, BY_SELECTION)
        entry.privacy = spent(config, clients, entry.round)


def _drop(entry: Entry, names: Sequence[str]) -> None:
    """Set fields back to their defaults, which are left out of the journal's line."""
    for name in names:
        setattr(entry, name, Entry.model_fields[name].get_default(call_default_factory=True))
        entry.model_fields_set.discard(name)
