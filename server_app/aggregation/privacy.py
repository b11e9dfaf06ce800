"""The server's part of differential privacy: noisy mean, selection, accounting, withheld fields.

``central``: clients send unmodified updates; the server clips each, adds noise to the sum and
publishes no single update. ``local``: a client clips its update and adds noise to it
(``client_app/handler.py``); the server sums the updates.
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
"""Journal fields about single clients or their data."""
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]
"""Orders of the Rényi divergence. For integers that of a sampled Gaussian is a finite sum."""
BY_SELECTION = ("selected", "replied", "failures", "bytes", "cost")
"""Journal fields that reveal which or how many clients were selected."""


@final
class NoisyMean:
    """The noisy mean of one run; the folder ``config.run.out`` keeps its secret key."""

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
        """Return w + (Σ_k Δ_k + noise) / m for m expected clients; without states noise alone.

        Integer counters, and buffers that are not averaged, stay unchanged.
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
        """Return the clients of round t, each selected independently with probability m / N.

        The list may be empty.
        """
        share = expected(self.config, clients) / clients
        return [int(k) for k in (self.secret.uniform(clients, "select", t) <= share).nonzero()[0]]


def expected(config: Config, clients: int) -> int:
    """Return m, the number of selected clients of a round, or its mean if selection is random."""
    return config.run.per_round or clients


def delta(options: Options, clients: int) -> float:
    """Return the configured δ, or N^−1.1 with N at least 2."""
    return options.delta or float(max(clients, 2)) ** -1.1


def spent(config: Config, clients: int, rounds: int) -> Privacy:
    """Return ε and δ after ``rounds`` rounds.

    Unless selection is secret, every client counts as selected in every round. Then T rounds of the
    Gaussian mechanism equal one with noise z / √T, whose ε is exact (Balle and Wang, ICML 2018).
    Rounds with secret selection are composed by Rényi divergences (Mironov, Talwar, Zhang, 2019),
    which give an upper bound of ε.

    Neighbouring inputs: for ``central`` with or without one client; for ``local`` one client's
    update or any other, at a distance of at most 2 C.
    """
    o = config.privacy
    dp, share, d = imported("dp_accounting"), expected(config, clients) / clients, delta(o, clients)
    z = o.noise_multiplier / (2 if o.mode == "local" else 1)
    epsilon = dp.get_epsilon_gaussian(z / math.sqrt(rounds), d)
    if o.sampling == "secret" and share < 1:
        accountant = imported("dp_accounting.rdp").RdpAccountant(ORDERS)
        accountant.compose(dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z)), rounds)
        epsilon = min(epsilon, accountant.get_epsilon(d))  # random selection never increases ε
    return Privacy(epsilon=float(epsilon), delta=d)


def withhold(entry: Entry, config: Config, clients: int) -> None:
    """Remove the fields without noise from a journal entry, and add ε and δ."""
    options = config.privacy
    if not options.on:
        return
    _drop(entry, BY_CLIENT)
    if entry.clients:
        hidden = {"n": 0, "n_test": 0, "classes": [], "counts": None}
        entry.clients = [m.model_copy(update=hidden) for m in entry.clients]
    if entry.round:
        if options.sampling == "secret":
            _drop(entry, BY_SELECTION)
        entry.privacy = spent(config, clients, entry.round)


def _drop(entry: Entry, names: Sequence[str]) -> None:
    """Reset fields to their defaults, so that the journal's line does not have them."""
    for name in names:
        setattr(entry, name, Entry.model_fields[name].get_default(call_default_factory=True))
        entry.model_fields_set.discard(name)
