"""The server's part of differential privacy: noisy mean, selection and accounting.

``central``: clients send unmodified updates; the server clips each, adds noise to the sum and
publishes no single update. ``local``: a client clips its update and adds noise to it
(``client_app/handler.py``); the server sums the updates.
"""

import math
from collections.abc import Iterable, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch

from common import progress
from common.exchange.records import StateDict
from common.extras import imported
from common.journal import Privacy
from common.settings.config import Config
from common.settings.options import Privacy as Options
from common.techniques.privacy import Secret, averaged, clipped, flattened, moved, noised


@final
class NoisyMean:
    """The noisy mean of one run; the folder ``config.run.out`` keeps its secret key."""

    def __init__(self, config: Config) -> None:
        self.options, self.config = config.privacy, config
        folder = Path(config.run.out)
        self.secret = Secret.kept(folder) if config.run.resume else Secret.made(folder)
        imported("dp_accounting.pld")

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
        for state in progress.steps(states, "reply"):
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


def usual_delta(clients: int) -> float:
    """Return the default δ for N clients: 1 / (10 N), at most 1e-5."""
    return min(1e-5, 1 / (10 * clients))


def delta(options: Options, clients: int) -> float:
    """Return the configured δ, or the default."""
    return options.delta or usual_delta(clients)


def warning(config: Config, clients: int) -> str:
    """Return a warning if the configured δ is above the default, which makes ε look small."""
    usual = usual_delta(clients)
    if not config.privacy.on or delta(config.privacy, clients) <= usual:
        return ""
    return (
        f"privacy.delta = {config.privacy.delta:g} is above {usual:.2g}, the default for {clients} "
        "clients: ε is small because of it, and with probability δ it does not hold"
    )


def spent(config: Config, clients: int, rounds: int) -> Privacy:
    """Return ε and δ after ``rounds`` rounds.

    Unless selection is secret, every client counts as selected in every round. Then T rounds of the
    Gaussian mechanism equal one with noise z / √T, whose ε is exact (Balle and Wang, ICML 2018).
    Rounds with secret selection are composed by their privacy loss distribution (``_sampled``).

    Neighbouring inputs: for ``central`` with one client's updates or zeros in their place; for
    ``local`` one client's update or any other, at a distance of at most 2 C.
    """
    o = config.privacy
    dp, share, d = imported("dp_accounting"), expected(config, clients) / clients, delta(o, clients)
    z = o.noise_multiplier / (2 if o.mode == "local" else 1)
    epsilon = dp.get_epsilon_gaussian(z / math.sqrt(rounds), d)
    if o.sampling == "secret" and share < 1:  # random selection never increases ε
        epsilon = min(epsilon, _sampled(share, z, rounds).get_epsilon_for_delta(d))
    return Privacy(epsilon=float(epsilon), delta=d)


def _sampled(share: float, z: float, rounds: int) -> Any:
    """Return an upper bound of the privacy loss distribution of ``rounds`` Poisson-sampled rounds.

    The distribution is on a grid (Koskela, Jälkö, Honkela, AISTATS 2020; connect-the-dots of
    Doroshenko et al., PoPETs 2022). Every grid gives an upper bound; a finer one gives a smaller
    bound. The interval is a small part of the loss's standard deviation in one round, but large
    enough for at most about 2¹⁸ points before and 2²⁰ after the composition.
    """
    deviation = min(share * math.sqrt(math.expm1(min(1 / z**2, 700.0))), 1 / z)
    most, mean = 1 / (2 * z**2) + 8 / z, rounds * share / (2 * z**2)
    return _one_round(share, z, max(deviation / 20, most / 2**18, mean / 2**20)).self_compose(
        rounds
    )


@lru_cache(maxsize=2)
def _one_round(share: float, z: float, interval: float) -> Any:
    """Return the privacy loss distribution of one round on a grid of this interval."""
    distribution = imported("dp_accounting.pld").privacy_loss_distribution
    return distribution.from_gaussian_mechanism(
        z, value_discretization_interval=interval, sampling_prob=share
    )
