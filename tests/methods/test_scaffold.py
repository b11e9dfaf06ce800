"""SCAFFOLD: control variates that stay what the server believes them to be."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.bases.global_copy import GlobalCopy
from client_app.methods.scaffold import ClientState
from common.exchange.records import StateDict
from common.methods.scaffold import Options
from common.parse import defaults, parse
from common.training import optimise
from server_app.methods.scaffold import State
from server_app.storage.checkpoint import Checkpoint, path_in
from tests import papers
from tests.support.battery import Losing, lost, unchanged
from tests.support.scalar import PLAIN, descend, result
from tests.support.tiny import Run, TinyRun, flat, play
from tests.support.weights import own_models

HAND = {"method": "scaffold", "clients": 2, "keep": 1, **PLAIN}


def state(run: TinyRun) -> State:
    return State(**Checkpoint.load(path_in(run.folder)).state)


def variates(run: TinyRun, t: int) -> list[StateDict]:
    """c_k of each client as it kept it in round t."""
    return own_models(run, t, ClientState, "c")


def variate(run: TinyRun, t: int, k: int) -> float:
    return float(variates(run, t)[k]["w"])


@pytest.mark.parametrize("correction", ["gradient", "after"])
def test_two_rounds_by_hand(correction: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # f_k = ½ (w − a_k)², a = (0, 4), η = 0.1, K = 2. Round 1: y = (0, .76), so w = .38,
    # c_k = (0, −3.8), c = −1.9. Round 2: y = (.6688, .7068), which is on average two centralised
    # steps from .38: .38 → .542 → .6878.
    descend(monkeypatch, (0.0, 4.0))
    first = run(**HAND, rounds=1, scaffold__correction=correction)
    assert result(first) == pytest.approx(0.38, abs=1e-6)
    assert [variate(first, 1, k) for k in (0, 1)] == pytest.approx([0, -3.8], abs=1e-5)
    assert float(state(first).c["w"]) == pytest.approx(-1.9, abs=1e-5)
    second = run(**HAND, rounds=2, scaffold__correction=correction)
    assert result(second) == pytest.approx(0.6878, abs=1e-6)
    assert float(state(second).c["w"]) == pytest.approx(-1.539, abs=1e-5)


def losing(folder: Path, rounds: int) -> TinyRun:
    return play(flat(folder, **HAND, rounds=rounds, min_replies=0.5), Losing)


def test_a_lost_reply_does_not_part_the_server_from_its_clients(tmp_path, monkeypatch) -> None:
    descend(monkeypatch, (0.0, 4.0))
    played = losing(tmp_path, 3)
    assert [entry["replied"] for entry in played.journal[1:]] == [[0, 1], [0], [0, 1]]
    assert result(played) == pytest.approx(0.921728, abs=1e-6)
    c = float(state(played).c["w"])
    assert c == pytest.approx(-1.264640, abs=1e-5)
    assert c == pytest.approx((variate(played, 3, 0) + variate(played, 3, 1)) / 2, abs=1e-6)
    assert state(played).accepted == {0: 3, 1: 3}


def test_the_store_keeps_the_round_that_the_server_counts_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Losing, "tampers", (unchanged, lost, lost, lost, unchanged))
    descend(monkeypatch, (0.0, 4.0))
    played = losing(tmp_path, 4)
    rounds = sorted(path.name for path in (tmp_path / "state" / "test" / "1").glob("[0-9]*"))
    assert rounds == ["1", "3", "4"] and state(played).accepted == {0: 4, 1: 1}
    played = play(flat(tmp_path, **HAND, rounds=5, min_replies=0.5, resume=True), Losing)
    mean = (variate(played, 5, 0) + variate(played, 5, 1)) / 2
    assert float(state(played).c["w"]) == pytest.approx(mean, abs=1e-6)


def test_with_everybody_in_c_is_the_mean_of_the_clients_variates(run: Run) -> None:
    played = run(method="scaffold", rounds=3, data__partition="quantity_dirichlet")
    held = variates(played, 3)
    for name, c in state(played).c.items():
        mean = torch.stack([c_k[name] for c_k in held]).mean(0)
        assert torch.allclose(c, mean, atol=1e-5 * float(mean.abs().max())), name


DEPTHS = {"fleet": "cnn2@0.5,cnn3@0.5", "data__partition": "quantity_dirichlet"}


@pytest.mark.parametrize("across", ["layerwise", "same"])
def test_across_depths_a_variate_is_the_mean_of_those_who_have_the_layer(across, run) -> None:
    settings = {**DEPTHS, "average__across": across}
    first = run(method="scaffold", rounds=1, **settings)
    fedavg = run(method="fedavg", rounds=1, average__weights="uniform", **settings)
    assert first.weights == fedavg.weights
    played = run(method="scaffold", rounds=3, **settings)
    held = variates(played, 3)
    assert len(held[0]) < len(held[1])
    inner: Any = Checkpoint.load(path_in(played.folder)).state["inner"]
    models = [client["model"] for client in played.journal[0]["clients"]]
    for key, c in inner["c"].items():
        spec, _, name = key.rpartition("/")
        own = [w for w, model in zip(held, models, strict=True) if spec in ("", model)]
        mean = torch.stack([w[name] for w in own if name in w]).mean(0)
        assert torch.allclose(c, mean, atol=1e-5 * float(mean.abs().max()) + 1e-8), key


def test_half_of_the_clients_move_c_by_half_of_their_mean_and_w_by_the_servers_rate(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    descend(monkeypatch, (1.0, 1.0, 1.0, 1.0))
    played = run(method="scaffold", **PLAIN, per_round=2, rounds=1, scaffold__server_lr=0.5)
    # y = 1 − .81 = .19, Δc = −.19 / .2 = −.95; two of four: c = ¼ · 2 · −.95
    assert float(state(played).c["w"]) == pytest.approx(-0.475, abs=1e-6)
    assert result(played) == pytest.approx(0.19 / 2, abs=1e-6)


def test_momentum_lengthens_the_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert optimise.effective(2, 0.9) == pytest.approx(2.9)  # 1 + 1.9
    assert optimise.effective(3, 0.0) == 3.0
    descend(monkeypatch, (0.0, 4.0))
    settings = {**HAND, "train__momentum": 0.9, "rounds": 1}
    # client 1: .4, then v = .9 · −4 − 3.6 = −7.2, so y = 1.12
    far = run(**settings)
    assert variate(far, 1, 1) == pytest.approx(-1.12 / 0.29, abs=1e-5)
    # ρ = ½: .4, then v = .5 · −4 − 3.6 = −5.6, so y = .96
    less = {**settings, "train__momentum": 0.5}
    assert variate(run(**less), 1, 1) == pytest.approx(-0.96 / 0.25, abs=1e-5)
    plain = run(**less, scaffold__divisor="steps")
    assert variate(plain, 1, 1) == pytest.approx(-0.96 / 0.2, abs=1e-5)


CURVED = ((1.0, 0.0), (2.0, 4.0))
"""h_k and a_k of clients with the losses ½ h_k (w − a_k)². With equal h_k the corrections cancel in
the mean of the models."""


def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    descend(monkeypatch, [a for _, a in CURVED])

    def loss(self: GlobalCopy[Any, Any], request: Any, net: Any) -> Any:
        h, a = CURVED[self.participant.k]
        return lambda x, y: 0.5 * h * (net.w - a).square().sum()

    monkeypatch.setattr(GlobalCopy, "loss", loss)


def niid_bench(steps: int, rounds: int) -> float:
    """Return w after SGD with lr 0.1, momentum 0.9 and the correction after each step."""
    w, c, own = 0.0, 0.0, [0.0] * len(CURVED)
    for _ in range(rounds):
        models, changes = [], []
        for k, (h, a) in enumerate(CURVED):
            y, velocity = w, 0.0
            for _ in range(steps):
                velocity = 0.9 * velocity + h * (y - a)
                y -= 0.1 * velocity
                y -= 0.1 * (c - own[k])
            changes.append(-c + (w - y) / (steps * 0.1))
            own[k] += changes[-1]
            models.append(y)
        w = sum(models) / len(models)
        c += sum(changes) / len(changes)
    return w


def test_a_correction_after_the_step_is_niid_benchs_with_divisor_k(run, monkeypatch) -> None:
    curve(monkeypatch)
    settings = {**HAND, "train__momentum": 0.9, "train__steps": 5, "rounds": 4}
    settings["scaffold__correction"] = "after"
    expected = niid_bench(steps=5, rounds=4)
    ours = run(**settings)
    assert result(ours) == pytest.approx(expected, abs=2e-6)
    assert run(**settings, scaffold__divisor="steps").weights == ours.weights
    other = run(**settings, scaffold__divisor="effective")
    assert abs(result(other) - expected) > 0.01
    settings = {**HAND, "train__momentum": 0.9, "rounds": 2}
    assert run(**settings).weights == run(**settings, scaffold__divisor="effective").weights


def test_the_divisor_that_lets_variates_grow_is_refused(run: Run) -> None:
    pair = {"method": "scaffold", "scaffold__divisor": "steps"}
    line = (
        r'^scaffold.divisor = "steps" is not allowed with scaffold.correction = "gradient" and '
        r'train.momentum = 0.9, which diverge; allowed: "auto", "effective"$'
    )
    with pytest.raises(ValueError, match=line):
        parse(flat(Path("out"), **pair))
    for allowed in ({"train__momentum": 0.5}, {"scaffold__correction": "after"}):
        parse(flat(Path("out"), **pair, **allowed))
    # d = c_k − c becomes (1 − K̃/K) d: the bound on ρ is where K̃/K can reach 2
    assert optimise.effective(10_000, 0.5) / 10_000 < 2 < optimise.effective(100, 0.51) / 100
    assert optimise.effective(20, 0.9) / 20 - 1 == pytest.approx(5.05, abs=0.01)


def test_no_recorded_cell_has_another_divisor_today() -> None:
    """The old default is K̃ for both corrections; a recorded correction after Adam has K̃ = K."""
    cells = 0
    places = (papers.RESULTS, papers.BUNDLED / "results")
    for file in sorted(path for place in places for path in place.glob("*/cells.jsonl")):
        for recorded in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if recorded["settings"].get("method") == "scaffold":
                kept = {k: v for k, v in recorded["settings"].items() if k != "data.digest"}
                config = parse({**defaults(), **kept})  # a record has no data.dir
                options, train = config.method, config.train
                assert isinstance(options, Options)
                cells += 1
                momentum = train.momentum if optimise.is_sgd(train) else 0.0
                assert options.includes_momentum or momentum == 0, recorded["fingerprint"]
    assert cells >= 91


def test_it_runs_under_adam_and_a_falling_rate(run: Run) -> None:
    settings = {"train__optimizer": "adam", "train__lr": 0.01, "train__lr_decay": 0.5}
    played = run(method="scaffold", scaffold__correction="after", rounds=3, **settings)
    assert played.summary["failures"] == []
