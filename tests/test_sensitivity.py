"""One client changes the sum before the noise by at most C, whatever the clients send."""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from client_app.store import Ledger, NotAnswered
from common.data import load, shares
from common.data.shares import for_testing
from common.exchange.protocol import ModelReply, ModelRequest
from common.journal import Entry, Failure
from common.parse import parse
from common.techniques import privacy as techniques
from server_app.aggregation import privacy
from server_app.release import withhold
from tests.support.neighbours import FULL, MOST, C, Federation, Update, case, directed
from tests.support.tiny import flat, under

pytest.importorskip("dp_accounting")


def worst(folder: Path, cases: int, most: int = MOST, **more: Any) -> float:
    """Return the largest ratio of a difference of two neighbours' sums to its bound.

    The bound is C, or for ``local``, where clients clip, the norm of the client's own update.
    """
    federations = {n: Federation(folder, n, **more) for n in range(2, most + 1)}
    rng, ratio = np.random.default_rng(7), 0.0
    central = more.get("privacy__mode") == "central"
    for i in range(cases):
        n = int(rng.integers(3, most + 1))
        whole, other = federations[n], federations[n - 1]
        rounds = [case(rng, whole.size, n) for _ in range(1 + i % 2)]
        k = int(rng.integers(n))
        without = [[*updates[:k], *updates[k + 1 :]] for updates in rounds]
        if i % 3 == 0:  # the client exists and sends nothing
            without, other = [[*u[:k], "lost", *u[k + 1 :]] for u in rounds], whole
        pairs = zip(whole.sums(rounds), other.sums(without), rounds, strict=True)
        for a, b, updates in pairs:
            own = updates[k]
            limit = C if central else float(own.norm()) if isinstance(own, Tensor) else 0.0
            if math.isfinite(limit):
                rounding = 1e-6 * float(a.abs().max())  # of float32, if clients clip
                apart = max(float((a - b).norm()) - rounding * (not central), 0.0)
                ratio = max(ratio, apart / limit if apart else 0.0)
    return ratio


@pytest.mark.parametrize(
    ("cases", "most"),
    [pytest.param(10, 7, id="10 cases"), pytest.param(1000, MOST, id="1000 cases", marks=FULL)],
)
def test_one_client_moves_the_sum_at_most_by_clip(cases: int, most: int, tmp_path: Path) -> None:
    ratio = worst(tmp_path, cases, most, privacy__mode="central")
    assert 0.9 < ratio <= 1 + 1e-6, "some clients use the bound, none exceeds it"


def test_a_repeated_round_moves_its_sums_by_what_is_counted(tmp_path: Path) -> None:
    """The k different sums of one round count as one with noise z / √k: together √k C apart."""
    whole = Federation(tmp_path, 5, privacy__mode="central")
    rng, k = np.random.default_rng(3), 2
    for case_number in range(5):
        updates: list[Update] = [directed(rng, whole.size, 10.0) for _ in range(5)]
        attempts = [[u if rng.random() < 0.7 else "lost" for u in updates] for _ in range(6)]
        for attempt in attempts:
            attempt[k] = updates[k]
        t = case_number + 1
        sums = whole.sums(attempts, [t] * len(attempts))
        without = [[*u[:k], "lost", *u[k + 1 :]] for u in attempts]
        counted = privacy.NoisySums.by_round(whole.folder)[t]
        others = whole.sums(without, [100 + t] * len(attempts))
        both = zip(sums, others, strict=True)
        pairs = {a.numpy().tobytes(): float((a - b).norm()) for a, b in both}
        assert counted == len(pairs), "equal sums have equal noise, and count once"
        apart = math.sqrt(sum(distance**2 for distance in pairs.values()))
        assert 0.99 * C <= apart / math.sqrt(counted) <= C * (1 + 1e-6)


SCORING = [
    (test, score_on, partition)
    for test in ("split", "own", "merge")
    for score_on in ("test", "validation")
    for partition in ("iid", "natural", "own")
]


@pytest.mark.parametrize(("test", "score_on", "partition"), SCORING)
def test_the_server_scores_on_no_sample_of_a_client(
    test: str, score_on: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings under which it would are refused; under all others no client's share is read."""
    data = under("data", test=test, score_on=score_on, partition=partition, validation=0.2)
    given = flat(Path("nowhere"), method="fedavg", privacy__mode="central", **data)
    try:
        config = parse(given)
    except ValueError:
        assert score_on == "validation" or (test != "split" and partition != "own")
        return
    monkeypatch.setattr(shares, "share", lambda *_: pytest.fail("a client's share"))
    scored = for_testing(config.data, 4, config.partition_seed)
    assert torch.equal(scored.x_test, load(config.data).x_test)
    assert score_on == "test" and (test == "split" or partition == "own")


def test_what_leaves_with_secret_selection_is_equal_for_all_selections(tmp_path: Path) -> None:
    """Who was selected, how long it took and who did not reply are no part of an entry."""
    settings = {"privacy__mode": "central", "privacy__sampling": "secret"}
    config = parse(flat(tmp_path, method="fedavg", clients=4, per_round=2, **settings))
    late = Failure(k=1, round=1, reason="no reply within 5 s", released="no reply within 5 s")
    lines = set()
    for selected, failures, seconds in (([0, 2], [], 3.5), ([], [], 0.1), ([1], [late], 5.0)):
        entry = Entry(round=1, selected=selected, replied=selected, failures=failures, loss=0.5)
        entry.seconds = {"clients": seconds, "step": 0.1, "total": seconds + 0.2}
        entry.bytes, entry.client_metrics = {"up": len(selected)}, {k: {} for k in selected}
        withhold(entry, config, 4)
        lines.add(entry.line())
    assert len(lines) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_client_draws_noise_once_for_each_round_that_its_ledger_counts(
    seed: int, tmp_path: Path
) -> None:
    """A server asks in any order, under several names, after restarts and with other weights."""
    rng, z, drawn = np.random.default_rng(seed), 2.0, dict[tuple[str, int], set[float]]()
    limit = techniques.gaussian_epsilon(9 * techniques.local_cost(z)) + 1e-9
    for _ in range(200):
        name, t = str(rng.choice(["a", "b", "c"])), int(rng.integers(1, 7))
        w = {"w": torch.tensor([float(rng.integers(3))])}
        request = ModelRequest(w=w).stamped(name, t)

        def work(request: ModelRequest = request) -> ModelReply:
            return ModelReply(w={"w": torch.from_numpy(rng.normal(size=1))}).stamped(request, 0)

        with contextlib.suppress(NotAnswered):
            reply = Ledger(tmp_path, max_epsilon=limit).answer("train", request, z, work)
            assert isinstance(reply, ModelReply)
            drawn.setdefault((name, t), set()).add(float(reply.w["w"]))
    assert {len(numbers) for numbers in drawn.values()} == {1} and 3 <= len(drawn) <= 9
    told = Ledger(tmp_path).check("d", 0, z)
    epsilon = techniques.gaussian_epsilon(len(drawn) * techniques.local_cost(z))
    assert f"{len(drawn)} rounds, with noise: ε = {epsilon:.3g}" in told


@pytest.mark.full
def test_under_local_each_reply_counts_by_itself(tmp_path: Path) -> None:
    assert worst(tmp_path, 60, 7, privacy__mode="local") <= 1.001
