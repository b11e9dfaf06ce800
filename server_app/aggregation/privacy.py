"""The server's part of differential privacy: noisy mean, selection and accounting.

``central``: clients send unmodified updates; the server clips each, adds noise to the sum and
publishes no single update. ``local``: a client clips its update and adds noise to it
(``client_app/handler.py``); the server sums the updates.
"""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, final

import torch

from common import progress
from common.exchange.records import StateDict
from common.extras import imported
from common.files import Damaged, write_atomically
from common.journal import Privacy
from common.settings.config import Config
from common.settings.options import Privacy as Options
from common.techniques.privacy import Secret, averaged, clipped, flattened, moved, noised

SUMS = "privacy.sums"  #: file in the run's folder with the noisy sums
LINE = re.compile(r"([1-9][0-9]{0,9}) [0-9a-f]{32}")


@final
class NoisySums:
    """The sums of a run that got noise: a file with round and name of each, in their order.

    A round that is repeated with the same sum has the same noise, so it releases nothing new. With
    another sum, since another reply is missing, it counts for ε once more. A name is made with the
    run's key, so it tells nothing of its sum.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self._path = folder / SUMS
        self._lines = [*_lines(self._path)] if resume else []
        write_atomically(self._path, "".join(self._lines).encode(), private=True)

    def add(self, t: int, name: bytes) -> None:
        """Write the sum ``name`` of round t to the disk; call it before anything of it leaves."""
        if (line := f"{t} {name.hex()[:32]}\n") not in self._lines:
            self._lines.append(line)
            with open(self._path, "a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.utime(self._path, (t, t))  # else it shows when all replies had arrived

    @staticmethod
    def by_round(folder: Path) -> Mapping[int, int]:
        """Return the number of sums of each round; empty for a run of an earlier release."""
        return Counter(int(line.split()[0]) for line in _lines(folder / SUMS))


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file of sums. Raises ``Damaged`` for another content."""
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    for number, line in enumerate(lines, start=1):
        if not LINE.fullmatch(line.rstrip("\n")):
            why = "without it ε cannot count rounds that were repeated"
            raise Damaged(f"{path}, line {number} is damaged; {why}")
    return lines


@final
class NoisyMean:
    """The noisy mean of one run; the folder ``config.run.out`` keeps its secret key."""

    def __init__(self, config: Config) -> None:
        self.options, self.config = config.privacy, config
        folder = Path(config.run.out)
        self.secret = Secret.kept(folder) if config.run.resume else Secret.made(folder)
        self.sums = NoisySums(folder, resume=config.run.resume)
        imported("dp_accounting.pld")

    def mean(
        self,
        t: int,
        states: Iterable[StateDict],
        previous: StateDict,
        parameters: Set[str],
        clients: int,
        weights: Sequence[float],
    ) -> StateDict:
        """Return w + (Σ_k s_k Δ_k + noise) / m for m expected clients; without states noise alone.

        ``weights``: s_k in [0, 1] of each state, 1 in synchronous rounds, which multiplies an
        update after it is clipped, so that its norm is at most C.

        Integer counters, and buffers that are not averaged, stay unchanged.
        """
        o = self.options
        names = averaged(previous, parameters, buffers=self.config.average.bn_buffers)
        start = flattened(previous, names)
        total = torch.zeros_like(start)
        for s, state in zip(weights, progress.steps(states, "reply"), strict=True):
            update = flattened(state, names) - start
            update = clipped(update, o.clip) if o.mode == "central" else update
            total += update if s == 1 else s * update
        digest = hashlib.sha256(total.numpy().tobytes()).digest()
        self.sums.add(t, self.secret.derived("sum", t, digest))
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
    """Return m, the number of selected clients of a round, or its mean if selection is random; in
    asynchronous rounds K, the number of updates."""
    return config.replies(clients)


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


def spent(
    config: Config, clients: int, rounds: int, sums: Mapping[int, int] | None = None
) -> Privacy:
    """Return ε and δ after ``rounds`` rounds.

    ``sums``: number of noisy sums by round, 1 for a round that is missing there. Sums of a round
    after ``rounds`` count too: it was not kept, but its loss was shown. The k sums of one round
    have the same selection, so they equal one with noise z / √k.

    Unless selection is secret, every client counts as selected in every round. Then T rounds of the
    Gaussian mechanism equal one with noise z / √T, whose ε is exact (Balle and Wang, ICML 2018).
    Rounds with secret selection are composed by their privacy loss distribution (``_sampled``).

    Neighbouring inputs: for ``central`` with one client's updates or zeros in their place; for
    ``local`` one client's update or any other, at a distance of at most 2 C.
    """
    o, sums = config.privacy, sums or {}
    times = Counter(sums.get(t, 1) for t in range(1, rounds + 1))  #: rounds by number of sums
    times.update(k for t, k in sums.items() if t > rounds)
    dp, share, d = imported("dp_accounting"), expected(config, clients) / clients, delta(o, clients)
    z = o.noise_multiplier / (2 if o.mode == "local" else 1)
    count = sum(k * n for k, n in times.items())
    epsilon = dp.get_epsilon_gaussian(z / math.sqrt(count), d)
    if o.sampling == "secret" and share < 1:  # random selection never increases ε
        epsilon = min(epsilon, _sampled(share, z, times).get_epsilon_for_delta(d))
    return Privacy(epsilon=float(epsilon), delta=d)


def _sampled(share: float, z: float, times: Mapping[int, int]) -> Any:
    """Return an upper bound of the privacy loss distribution of Poisson-sampled rounds.

    ``times``: number of rounds by their number of sums.

    The distribution is on a grid (Koskela, Jälkö, Honkela, AISTATS 2020; connect-the-dots of
    Doroshenko et al., PoPETs 2022). Every grid gives an upper bound; a finer one gives a smaller
    bound. The interval is a small part of the loss's standard deviation in one round, but large
    enough for at most about 2¹⁸ points before and 2²⁰ after the composition.
    """
    deviation = min(share * math.sqrt(math.expm1(min(1 / z**2, 700.0))), 1 / z)
    count = sum(k * n for k, n in times.items())
    most, mean = 1 / (2 * z**2) + 8 / z, count * share / (2 * z**2)
    interval = max(deviation / 20, most / 2**18, mean / 2**20)
    losses = [_one_round(share, z / k**0.5, interval).self_compose(n) for k, n in times.items()]
    return reduce(lambda whole, one: whole.compose(one), losses)


@lru_cache(maxsize=2)
def _one_round(share: float, z: float, interval: float) -> Any:
    """Return the privacy loss distribution of one round on a grid of this interval."""
    distribution = imported("dp_accounting.pld").privacy_loss_distribution
    return distribution.from_gaussian_mechanism(
        z, value_discretization_interval=interval, sampling_prob=share
    )
