"""Differential privacy: clipping, noise, refusals, what is withheld, ε against published values."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import nn

from client_app.handler import Handler, private
from client_app.methods import make
from client_app.participant import Participant
from common import methods
from common.exchange.protocol import (
    CensusRequest,
    ModelReply,
    ModelRequest,
    Reply,
    ScoreRequest,
)
from common.exchange.records import StateDict
from common.journal import Entry
from common.parse import parse
from common.techniques import privacy
from common.techniques.privacy import (
    NAME,
    ORDERS,
    Secret,
    averaged,
    clipped,
    flattened,
    gaussian_epsilon,
    local_cost,
    moved,
    noised,
)
from deploy.report import sections
from deploy.report.read import read
from deploy.run.loopback import Loopback
from server_app.aggregation.privacy import NoisyMean, NoisySums, delta, spent
from server_app.scoring.score import Scorer
from server_app.stopped import Stopped
from server_app.strategy import MethodStrategy
from tests.support.adversary import Largest
from tests.support.tiny import TinyRun, flat, overrides, play, under

KEY = bytes([5]) * 32
AVERAGED = {"fedavg", "fedprox", "moon", "fedntd", "fedgkd", "dafl", "ditto", "fml"}
AVERAGED |= {"fedit", "ffa-lora", "rolora"}
NAMES = ["weight", "bias"]
CASES = [(1000, 10, 1.0, 100), (1000, 10, 0.5, 1000), (100, 10, 1.0, 1), (100, 90, 1.0, 3)]
CASES += [(10, 5, 0.1, 50), (100, 1, 30.0, 1000)]
TOLD = {"client_metrics", "scores", "fairness", "uncovered", "accuracy_covered"}


@pytest.fixture(autouse=True)
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "entropy", lambda: KEY)


def run(folder: Path, mode: str = "central", **changes: Any) -> TinyRun:
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 2, "train__epochs": 1}
    given |= {"privacy__mode": mode, "privacy__clip": 0.01}
    return play(flat(folder, **{**given, **changes}))


# The mechanism.
def test_a_long_update_is_shortened_as_a_whole_and_a_short_one_stays() -> None:
    long = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    assert clipped(long, 6.5).tolist() == [1.5, 2.0, 6.0]
    assert clipped(long, 13.0) is long


def test_buffers_count_where_they_are_averaged_and_counters_never_do() -> None:
    net = nn.BatchNorm1d(2)
    state, parameters = net.state_dict(), {name for name, _ in net.named_parameters()}
    assert averaged(state, parameters, buffers=False) == ["weight", "bias"]
    names = averaged(state, parameters, buffers=True)
    assert names == ["weight", "bias", "running_mean", "running_var"]
    found = moved(state, names, torch.full((8,), -5.0, dtype=torch.float64))
    assert found["running_var"].tolist() == [0.0, 0.0], "no variance is negative"
    assert found["weight"].tolist() == [-4.0, -4.0] and int(found["num_batches_tracked"]) == 0


def test_noise_is_normal_of_the_standard_deviation_asked_for() -> None:
    zero = torch.zeros(200_001, dtype=torch.float64)
    noise = noised(zero, 3.0, Secret(KEY), 1)
    n = len(noise)
    assert abs(float(noise.mean())) < 4 * 3 / math.sqrt(n)
    assert abs(float(noise.var()) / 9 - 1) < 4 * math.sqrt(2 / n)
    within = float((noise.abs() < 3).double().mean())
    assert abs(within - math.erf(1 / math.sqrt(2))) < 0.005
    lagged = float((noise[1:] * noise[:-1]).mean()) / 9
    assert abs(lagged) < 4 / math.sqrt(n) and float(noise.abs().max()) > 9


def test_noise_repeats_for_the_same_sum_in_the_same_round_and_for_nothing_else() -> None:
    secret, sums = Secret(KEY), torch.ones(9, dtype=torch.float64)
    first = noised(sums, 1.0, secret, 1)
    others = [noised(sums, 1.0, secret, 2), noised(sums + 1, 1.0, secret, 1) - 1]
    others += [noised(sums, 1.0, Secret(bytes(32)), 1)]
    assert torch.equal(first, noised(sums, 1.0, Secret(KEY), 1))
    assert not any(torch.isclose(first, other).any() for other in others)


def test_the_key_lies_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    made = Secret.made(tmp_path)
    path = tmp_path / NAME
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == KEY
    assert Secret.kept(tmp_path).uniform(3, "a").tolist() == made.uniform(3, "a").tolist()
    path.write_bytes(KEY[:5])
    with pytest.raises(ValueError, match="privacy.key has 5 bytes"):
        Secret.kept(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="a repeated round would get other noise"):
        Secret.kept(tmp_path)


def test_keys_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    keys = {privacy.entropy() for _ in range(3)}
    assert len(keys) == 3 and {len(key) for key in keys} == {32}


def server(folder: Path, **changes: Any) -> NoisyMean:
    given = {"method": "fedavg", "privacy__mode": "central", **changes}
    return NoisyMean(parse(flat(folder, **given)))


def states(*rows: list[float]) -> list[StateDict]:
    return [{"weight": torch.tensor([row]), "bias": torch.zeros(1)} for row in rows]


def test_the_mean_is_over_those_expected_not_over_those_who_came(tmp_path: Path) -> None:
    """Four clients, two a round: (0.6, 0.8) and (0, 5) clipped to (0, 1), then halved."""
    before, *replies = states([0.0, 0.0], [0.6, 0.8], [0.0, 5.0])
    of = server(tmp_path, per_round=2, privacy__noise_multiplier=0.01)
    for sent, total, expected in (
        (replies, [0.6, 1.8, 0.0], [0.3, 0.9, 0.0]),
        (replies[:1], [0.6, 0.8, 0.0], [0.3, 0.4, 0.0]),  # the other is lost
        ([], [0.0] * 3, [0.0] * 3),
    ):
        zero = torch.zeros(3).double()
        exact = sum((clipped(flattened(reply, NAMES), 1.0) for reply in sent), zero)
        assert exact.tolist() == pytest.approx(total, abs=1e-7)
        added = noised(exact, 0.01, Secret(KEY), 1) - exact
        found = flattened(of.mean(1, sent, before, set(NAMES), 4, [1.0] * len(sent)), NAMES)
        assert (found - added / 2).tolist() == pytest.approx(expected, abs=1e-7)
        assert bool((added != 0).all())


def test_secret_selection_takes_each_by_itself(tmp_path: Path) -> None:
    of = server(tmp_path, clients=50, per_round=5, privacy__sampling="secret")
    drawn = [of.selected(t, 50) for t in range(1, 401)]
    sizes = torch.tensor([len(each) for each in drawn], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 5) < 4 * math.sqrt(4.5 / 400)
    assert abs(float(sizes.var()) - 4.5) < 1.5 and float(sizes.min()) <= 1, "binomial"
    taken = torch.bincount(torch.tensor([k for each in drawn for k in each]), minlength=50)
    assert int(taken.min()) > 15 and int(taken.max()) < 70
    assert drawn[0] == of.selected(1, 50) and drawn[0] != drawn[1]


# The bill.
def bill(rounds: int, clients: int = 100, per_round: int = 0, **changes: Any) -> float:
    given = {"mode": "central", **changes}
    settings = {"method": "fedavg", "clients": clients, "per_round": per_round}
    config = parse(flat(Path("nowhere"), **settings, **under("privacy", **given)))
    return spent(config, clients, rounds).epsilon


def test_epsilon_of_one_gaussian_is_the_analytic_one() -> None:
    """δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) (Balle and Wang, ICML 2018, theorem 8)."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    for z, T in ((1.0, 1), (2.0, 1), (4.0, 25), (1.0, 4)):
        epsilon = bill(T, noise_multiplier=z, delta=1e-5)
        a = z / math.sqrt(T)
        told = phi(1 / (2 * a) - epsilon * a) - math.exp(epsilon) * phi(-1 / (2 * a) - epsilon * a)
        assert told == pytest.approx(1e-5, rel=1e-3)
    assert bill(1, noise_multiplier=1.0, delta=1e-5) == pytest.approx(4.377, abs=1e-3)


def test_composed_gaussians_cost_less_than_by_concentrated_privacy() -> None:
    """ρ = T/2z², ε ≤ ρ + 2 √(ρ ln 1/δ) (Bun and Steinke, TCC 2016, propositions 1.3 and 1.6)."""
    for z, T in ((1.0, 10), (5.0, 100), (10.0, 1000)):
        rho = T / (2 * z**2)
        bound = rho + 2 * math.sqrt(rho * math.log(1e5))
        assert 0.7 * bound < bill(T, noise_multiplier=z, delta=1e-5) < bound


def test_secret_selection_costs_what_numerical_composition_says() -> None:
    """Abadi et al., CCS 2016, section 3.2: q = 0.01, σ = 4, T = 10,000, δ = 1e-5: ε ≈ 1.26.

    Their moments accountant is an upper bound; the tight value is 0.9470.
    """
    secret = {"noise_multiplier": 4.0, "delta": 1e-5, "per_round": 1}
    assert 0.9470 <= bill(10_000, sampling="secret", **secret) < 0.9473
    assert bill(10_000, sampling="public", **secret) > 100


@pytest.mark.parametrize(("clients", "per_round", "z", "rounds"), CASES)
def test_secret_selection_costs_less_than_by_renyi_divergences(
    clients: int, per_round: int, z: float, rounds: int
) -> None:
    """Mironov, Talwar, Zhang, 2019, with the accountant of dp-accounting."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([*range(2, 65), 80, 128, 256, 512])
    event = dp.PoissonSampledDpEvent(per_round / clients, dp.GaussianDpEvent(z))
    accountant.compose(event, rounds)
    settings = {"noise_multiplier": z, "delta": 1e-5, "per_round": per_round}
    epsilon = bill(rounds, clients, sampling="secret", **settings)
    assert epsilon < accountant.get_epsilon(1e-5)
    assert epsilon < bill(rounds, clients, **settings), "public selection"
    assert epsilon == bill(rounds, clients, sampling="secret", **settings), "the same bits again"


@pytest.mark.parametrize(("per_round", "value"), [(10, 0.394), (200, 11.25)])
def test_secret_selection_costs_what_the_docs_say(per_round: int, value: float) -> None:
    """1,000 clients, 100 rounds, z = 1, δ = 1000^−1.1; Rényi divergences give 0.736 and 12.86."""
    settings = {"noise_multiplier": 1.0, "delta": 1000**-1.1, "per_round": per_round}
    assert bill(100, 1000, sampling="secret", **settings) == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.5, 2.0), (0.01, 0.5), (0.9, 0.3)])
def test_epsilon_of_one_secret_round_is_the_exact_one_or_slightly_more(q: float, z: float) -> None:
    """δ(ε) = P(L > ε) − e^ε Q(L > ε) for P = (1 − q) N(0, z²) + q N(1, z²) and Q = N(0, z²)."""

    def tail(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    secret = {"sampling": "secret", "noise_multiplier": z, "delta": 1e-5}
    epsilon = bill(1, per_round=round(100 * q), **secret)
    at = z**2 * math.log((math.exp(epsilon) - (1 - q)) / q) + 0.5
    p, reference = (1 - q) * tail(at / z) + q * tail((at - 1) / z), tail(at / z)
    assert 0.98e-5 <= p - math.exp(epsilon) * reference <= 1e-5 * (1 + 1e-6)


def test_a_round_with_two_sums_costs_as_much_as_one_with_less_noise() -> None:
    """Both have the same selection, so they are one Gaussian at distance √2 C."""

    def cost(rounds: int, sums: dict[int, int], **changes: Any) -> float:
        given = {"mode": "central", "noise_multiplier": 2.0, "delta": 1e-5, **changes}
        more = {"method": "fedavg", "clients": 10, "per_round": 3}
        config = parse(flat(Path("nowhere"), **more, **under("privacy", **given)))
        return spent(config, 10, rounds, sums).epsilon

    assert cost(3, {}) == cost(3, {1: 1, 2: 1}) == cost(2, {1: 1, 3: 1})
    assert cost(3, {2: 2}) == cost(4, {}) == cost(2, {1: 1, 3: 2}), "exact, and public"
    secret = {"sampling": "secret"}
    less = cost(1, {}, sampling="secret", noise_multiplier=math.sqrt(2.0))
    assert cost(1, {1: 2}, **secret) == pytest.approx(less, rel=1e-3)
    assert cost(2, {}, **secret) < less < cost(3, {3: 2}, **secret) < cost(3, {})


def test_the_file_of_sums_has_no_half_line_and_no_damage(tmp_path: Path) -> None:
    sums = NoisySums(tmp_path, resume=False)
    for t, name in ((1, b"a" * 32), (2, b"b" * 32), (2, b"b" * 32), (2, b"c" * 32)):
        sums.add(t, name)
    path = tmp_path / "privacy.sums"
    assert NoisySums.by_round(tmp_path) == {1: 1, 2: 2} and path.stat().st_mode & 0o777 == 0o600
    whole = path.read_text()
    path.write_text(whole + "3 ab")  # cut by a crash, before anything of round 3 left
    NoisySums(tmp_path, resume=True).add(2, b"b" * 32)
    assert path.read_text() == whole
    path.write_text(whole.replace("2", "two", 1))
    with pytest.raises(ValueError, match="privacy.sums, line 2 is damaged; without it ε cannot"):
        NoisySums.by_round(tmp_path)
    NoisySums(tmp_path, resume=False)
    assert NoisySums.by_round(tmp_path) == {}, "a new run begins anew"


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 40), (50.0, 600), (0.1, 3)])
def test_a_clients_ledger_adds_up_what_an_accountant_does(z: float, rounds: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    accountant, usual = RdpAccountant([*ORDERS]), RdpAccountant()
    for one in (accountant, usual):
        one.compose(dp.GaussianDpEvent(z / 2), rounds)  # two updates are 2 C apart
    epsilon = gaussian_epsilon(local_cost(z) * rounds)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert dp.get_epsilon_gaussian(z / 2 / math.sqrt(rounds), 1e-5) <= epsilon
    assert epsilon <= usual.get_epsilon(1e-5) * (1 + 1e-4), "finer orders"
    assert gaussian_epsilon(0.0) == 0.0


def test_who_is_selected_publicly_counts_as_selected_always() -> None:
    assert bill(7, per_round=3) == bill(7, per_round=0)
    assert bill(7, per_round=100, sampling="secret") == bill(7), "everybody is nobody's secret"
    local = bill(3, mode="local", noise_multiplier=2.0)
    assert local == bill(3, noise_multiplier=1.0), "an update may be any other of the ball"


def test_delta_is_at_most_a_tenth_of_one_in_the_number_of_clients() -> None:
    """Below 1/N, since a mechanism that publishes one client's data has (0, 1/N)."""
    config = parse(flat(Path("nowhere"), method="fedavg", privacy__mode="central"))
    defaults = {n: delta(config.privacy, n) for n in (1, 3, 1_000, 10_000, 1_000_000)}
    assert defaults == {1: 1e-5, 3: 1e-5, 1_000: 1e-5, 10_000: 1e-5, 1_000_000: 1e-7}


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_delta_above_the_default_is_warned_of(value: float, tmp_path: Path) -> None:
    played = run(tmp_path, privacy__delta=value, rounds=1)
    line = "privacy.delta = 0.3 is above 1e-05, the default for 2 clients: "
    for notes in (played.journal[0].get("notes", []), read(tmp_path).notes):
        assert [note.startswith(line) for note in notes] == [True] * bool(value)
    assert all("does not hold" in note for note in read(tmp_path).notes), "it is shown whole"
    assert played.summary["privacy"]["delta"] == (value or 1e-5)


# What is refused.
@pytest.mark.parametrize("method", methods.names())
def test_a_method_that_sends_more_than_what_is_averaged_refuses(method: str) -> None:
    options = methods.options(method)
    given = flat(Path("nowhere"), method=method, privacy__mode="central")
    if method in AVERAGED:
        assert parse(given).average.weights == "uniform"
        return
    assert options.leaks != methods.MethodOptions.leaks, "it says what"
    line = f'privacy.mode = "central" is not allowed with method = "{method}": there are '
    with pytest.raises(ValueError, match=re.escape(line + options.leaks) + '; allowed: "off"'):
        parse(given)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("average.weights=samples", 'average.weights = "samples" .*; allowed: "uniform"'),
        ("average.robust=median", 'average.robust = "median" .*the noise is for a mean'),
        ("average.across=same", 'average.across = "same" .*a size may belong to a single client'),
        ("oca.aggregate=on", 'oca.aggregate = "on" .*cached uploads would be used again'),
        ("score.bn=recalibrated", "statistics have no noise"),
        ("score.clients-every=2", "scores have no noise; allowed: 0"),
        (
            "privacy.mode=local privacy.sampling=secret",
            "the selection is not secret from the server",
        ),
        ("from-round=1", "from-round = 1 .*results released after that round count too"),
        ("privacy.noise-multiplier=0.0", "privacy.noise-multiplier = 0.0 is not allowed"),
        ("min-replies=0.5", "min-replies = 0.5 is not allowed .* counts as a zero update"),
        ("score.drift=true", "score.drift = true is not allowed .* allowed: false"),
        ("flops=true", "flops = true is not .* how many samples a client has; allowed: false"),
        ("memory=true", "memory = true is not .* how many samples a client has; allowed: false"),
        (
            "data.score-on=validation data.validation=0.2",
            'data.score-on = "validation" .* on clients\' samples, without noise; allowed: "test"',
        ),
        ("data.test=merge", 'data.test = "merge" .* on clients\' samples, .*; allowed: "split"'),
        (
            "data.test=own data.partition=natural",
            'data.test = "own" .* on clients\' samples, .*; allowed: "split"',
        ),
    ],
)
def test_what_noise_on_a_mean_would_not_protect_is_refused(change: str, line: str) -> None:
    given = {"method": "fedavg", "privacy.mode": "central", **overrides(change)}
    with pytest.raises(ValueError, match=line) as told:
        parse(flat(Path("nowhere"), **given))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("test", ["own", "merge"])
def test_a_server_with_its_own_data_set_scores_on_no_clients_sample(test: str) -> None:
    given = {"method": "fedavg", "privacy.mode": "central", "data.partition": "own"}
    assert parse(flat(Path("nowhere"), **given, data__test=test)).data.test == test


# Whole runs.
def test_no_round_is_undone_under_privacy(tmp_path: Path) -> None:
    given = {"method": "fedavg", "fleet": "mlp@0.25", "privacy__mode": "local"}
    settings = flat(tmp_path, **given, privacy__clip=0.01, sanity=0.0)
    with pytest.raises(Stopped, match="round 2: the loss of the server's model is"):
        play(settings, Largest)
    assert [entry["round"] for entry in TinyRun(tmp_path).journal] == [0, 1]


@pytest.mark.parametrize("changes", [{}, {"privacy__sampling": "secret", "per_round": 3}])
def test_a_round_that_a_stopped_run_repeats_counts_twice(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the first attempt was shown, and the noise of the second one is another."""
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 4, "privacy__mode": "central"}
    settings = flat(tmp_path, **given, **changes, privacy__clip=0.01, rounds=3)
    config, sound = parse(settings), Scorer.check_sound

    def check_sound(self: Scorer, entry: Entry, guess: float) -> None:
        sound(self, entry, -1.0 if entry.round == 2 else guess)

    for attempts in (1, 1, 2):  # the second one has the same sum, and stops again
        with monkeypatch.context() as patch:
            patch.setattr(Scorer, "check_sound", check_sound)
            if attempts == 2:
                patch.setattr("client_app.handler.Handler.trained", lost)
            with pytest.raises(Stopped, match="round 2: the loss of the server's model is"):
                play(settings)
        assert NoisySums.by_round(tmp_path) == {1: 1, 2: attempts}
        stopped = TinyRun(tmp_path).summary
        assert stopped["privacy"]["epsilon"] == spent(config, 4, 2, {2: attempts}).epsilon
        settings["resume"] = True
    run = play(settings)
    assert NoisySums.by_round(tmp_path) == {1: 1, 2: 2, 3: 1}
    bills = [spent(config, 4, t, {2: 2} if t > 1 else {}).epsilon for t in (1, 2, 3)]
    assert [entry["privacy"]["epsilon"] for entry in run.journal[1:]] == bills
    assert run.summary["privacy"]["epsilon"] == bills[-1] > spent(config, 4, 3).epsilon


def asked(grid: Loopback, t: int, w: StateDict, experiment: str = "test") -> Message:
    """Return the reply of client 0 to a request of round t."""
    content = ModelRequest(w=w).stamped(experiment, t).pack()
    (reply,) = grid.pull_messages(grid.push_messages([Message(content, 1, "train")]))
    return reply


def test_a_server_averages_no_noise_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It asks for one round again and again, with slightly different weights."""
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 1, "privacy__mode": "local"}
    settings = flat(tmp_path, **given, privacy__noise_multiplier=100.0, rounds=3)
    config = parse(settings)
    w = Participant(config, {"partition-id": 0}, "test").model("mlp@0.25").state_dict()
    name = next(iter(w))
    with Loopback(1, settings, workers=0) as grid:
        first = ModelReply.unpack(asked(grid, 1, w).content)
        for i in range(1, 6):
            assert asked(grid, 1, {**w, name: w[name] + 1e-6 * i}).has_error()
        again = ModelReply.unpack(asked(grid, 1, w).content)
        assert all(torch.equal(first.w[n], again.w[n]) for n in w)
    assert "round 1 was answered before, and this is another request" in caplog.text
    noise = flattened(first.w, [name]) - flattened(w, [name])
    assert float(noise.std()) == pytest.approx(100, rel=0.2)


def test_a_changed_state_dir_and_another_experiment_are_in_the_same_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = {0: {"ledger": str(tmp_path / "ledger"), "max-rounds": 4, "max-epsilon": 9.5}}
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 1, "privacy__mode": "local"}
    for i in range(3):
        settings = flat(tmp_path / str(i), **given, privacy__noise_multiplier=2.0, rounds=9)
        w = Participant(parse(settings), {"partition-id": 0}, "e").model("mlp@0.25").state_dict()
        with Loopback(1, settings, workers=0, node_configs=own) as grid:
            replies = [asked(grid, t, w, f"e{i}") for t in (1, 2)]
            assert [reply.has_error() for reply in replies] == [i == 2, i > 0]
    assert "max-epsilon = 9.5 of this client's owner: another round makes ε = 10.7" in caplog.text


def test_a_resumed_local_run_gets_the_stored_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"mode": "local", "rounds": 3}
    whole = run(tmp_path / "whole", **local)
    record, folder = MethodStrategy._record, tmp_path / "part"

    def stop(self: MethodStrategy) -> None:
        if self.entry.round == 2:
            raise KeyboardInterrupt  # the replies are here, but no checkpoint of the round
        record(self)

    with monkeypatch.context() as patch:
        patch.setattr(MethodStrategy, "_record", stop)
        with pytest.raises(KeyboardInterrupt):
            run(folder, **local)
    trained, rounds = Handler.trained, list[int]()

    def counted(self: Handler[Any, Any], request: ModelRequest) -> Reply:
        rounds.append(request.t)
        return trained(self, request)

    monkeypatch.setattr(Handler, "trained", counted)
    part = run(folder, **local, resume=True)
    assert rounds == [3, 3], "round 2 is not trained again"
    assert part.timeless == whole.timeless and part.weights == whole.weights


def test_a_new_run_with_the_name_of_another_one_is_refused_in_the_census(tmp_path: Path) -> None:
    state = {"state_dir": str(tmp_path / "state"), "mode": "local"}
    run(tmp_path / "a", **state)
    line = "experiment = 'test': this client has answered its round 2, and .*; choose another name"
    with pytest.raises(Stopped, match=line):
        run(tmp_path / "b", **state)
    run(tmp_path / "c", **state, experiment="other")


def lost(*_: object) -> ModelReply:
    raise OSError("no reply")


@pytest.mark.parametrize("mode", ["central", "local"])
def test_journal_and_summary_say_epsilon_and_no_clients_data(mode: str, tmp_path: Path) -> None:
    found = run(tmp_path, mode, privacy__noise_multiplier=0.5)
    census, *rounds = found.journal
    for entry in found.journal:
        assert not TOLD & {name for name, value in entry.items() if value}
        assert not [name for name in entry.get("metrics", {}) if name.startswith("client")]
    assert all((m["n"], m["n_test"], m["classes"]) == (0, 0, []) for m in census["clients"])
    assert not [m for m in census["clients"] if m["counts"]]
    epsilons = [entry["privacy"]["epsilon"] for entry in rounds]
    assert epsilons[0] < epsilons[1] and "privacy" not in census
    told = found.summary["privacy"]
    assert told["epsilon"] == epsilons[-1] and told["mode"] == mode
    assert told["delta"] == 1e-5
    (card,) = sections.privacy(read(tmp_path)).cards
    assert f"ε = {epsilons[-1]:.4g} at δ = 1e-05 after round 2" in card.text


def test_secret_selection_is_told_to_nobody_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    secret = {"privacy__sampling": "secret", "per_round": 1, "rounds": 3}
    picks = [Secret(KEY).uniform(2, "select", t) <= 1 / 2 for t in range(1, 4)]
    assert sorted(int(pick.sum()) for pick in picks) == [0, 1, 2], "one round is empty"
    whole = run(tmp_path / "whole", **secret)
    for entry in whole.journal[1:]:
        hidden = {"selected", "replied", "failures", "bytes", "cost", *TOLD}
        assert not hidden & entry.keys()
    assert len(whole.journal) == 4 and not whole.summary["bytes"].get("up")
    run(tmp_path / "part", **{**secret, "rounds": 1})
    part = run(tmp_path / "part", **secret, resume=True)
    assert part.timeless == whole.timeless and part.weights == whole.weights
    (tmp_path / "part" / NAME).unlink()
    with pytest.raises((ValueError, Stopped), match="privacy.key cannot be read"):
        run(tmp_path / "part", **{**secret, "rounds": 4}, resume=True)


def test_a_client_bounds_and_blurs_its_update_before_it_leaves(tmp_path: Path) -> None:
    local = {"privacy__mode": "local", "privacy__clip": 0.5}
    config = parse(flat(tmp_path, method="fedavg", fleet="mlp@0.25", **local))
    participant = Participant(config, {"partition-id": 1}, "test")
    w = participant.model("mlp@0.25").state_dict()
    far = {name: value + 1 for name, value in w.items()}
    request = ModelRequest(w=w).stamped("test", 3)
    reply = ModelReply(w=far, metrics={"loss": 1.0})
    sent = private(participant, "mlp@0.25", request, reply)
    names = averaged(w, set(w), buffers=True)
    update = clipped(flattened(far, names) - flattened(w, names), 0.5)
    assert float(update.norm()) == pytest.approx(0.5)
    expected = moved(w, names, noised(update, 0.5, Secret(KEY), 3))
    assert all(torch.equal(sent.w[name], expected[name]) for name in w)
    assert sent.metrics == {}
    key = tmp_path / "state" / "test" / "1" / NAME
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_client_whose_server_is_not_trusted_sends_no_scores_and_no_sizes(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, method="fedavg", fleet="mlp@0.25", privacy__mode="local"))
    half = make(Participant(config, {"partition-id": 1}, "test"))
    info = half.hello(CensusRequest(clients=4))
    assert (info.n, info.n_test, info.counts) == (1, 0, None) and len(info.classes) > 1
    with pytest.raises(ValueError, match="a client sends no scores"):
        half.scored(ScoreRequest(w=None))
