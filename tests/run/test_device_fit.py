"""Which network fits a device: measured costs, runs that are refused, networks that are chosen."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from common import models
from common.parse import parse
from common.training.costs import following
from deploy.machines import submit
from deploy.run import fit
from deploy.run.fit import Gauge
from deploy.run.trial import Form, Kind, measure
from deploy.settings import load_run
from tests.support.battery import METHODS, OVERRIDES, tiers
from tests.support.commandline import error_of, typed
from tests.support.tiny import TinyRun, flat, play

GREY = Form((1, 28, 28), tuple("0123456789"), of_bytes=True)
COLOUR = Form((3, 32, 32), tuple("0123456789"), of_bytes=True)
LENET = {1: 553_576, 16: 1_461_736, 32: 2_430_440, 64: 4_367_848}
"""Bytes of a training step beside network and batch, computed apart from this code."""
SMALL, LARGE = "mlp@0.25", "cnn2@0.5"
TINY = ["method=local", "data.name=toy", "data.samples=120", "data.test-samples=60", "device=cpu"]
TINY += ["data.partition=iid", "clients=3", "rounds=1", "train.epochs=1", "train.batch-size=16"]
TINY += [f"fleet={SMALL},{LARGE}"]


def words(*settings: str) -> list[str]:
    return [word for setting in (*TINY, *settings) for word in ("-s", setting)]


def needs(batch: int, form: Form, **changes: Any) -> float:
    config = {**flat(Path("unused"), **changes), "clock.fit": "refuse"}
    kind = Kind(str(config["fleet"]))
    return measure(config, form, [kind], batch)[kind].memory


@pytest.mark.parametrize("batch", LENET)
def test_two_steps_of_a_network_take_the_bytes_that_were_counted_apart(batch: int) -> None:
    net = models.build("lenet5", (1, 28, 28), 10, seed=0)
    x, y = torch.zeros(batch, 1, 28, 28), torch.arange(batch) % 10
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    with following(True) as peak:
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    assert peak.most == LENET[batch]
    one = {"method": "fedavg", "fleet": "lenet5", "clients": 1, "train__momentum": 0.9}
    network, inputs = 4 * models.count(net), batch * (28 * 28 * 4 + 8)
    more = needs(batch, GREY, **one) - peak.most - 2 * network - inputs
    assert 0 <= more < 1000, "with the message, the network, a batch of inputs and their order"


@pytest.mark.parametrize(
    ("form", "network"), [(GREY, "lenet5"), pytest.param(COLOUR, "resnet8", marks=pytest.mark.full)]
)
def test_memory_is_linear_in_the_batch_from_16_on(form: Form, network: str) -> None:
    given = {"method": "fedavg", "fleet": network, "clients": 1}
    first, second, third = (needs(batch, form, **given) for batch in (16, 32, 64))
    assert third == pytest.approx(first + 3 * (second - first), rel=0.01)
    slope = {"lenet5": 60_544 + 28 * 28 * 4 + 8, "resnet8": 671_744 + 32 * 32 * 12 + 8}[network]
    assert (second - first) / 16 == pytest.approx(slope, rel=0.01)


def test_a_trial_needs_what_a_run_needs(tmp_path: Path) -> None:
    given: dict[str, Any] = {"fleet": LARGE, "clients": 2, "data__test_fraction": 0.0}
    given |= {"method": "fedavg", "rounds": 3}
    run = play(flat(tmp_path / "run", **given, train__epochs=3, memory=True, flops=True))
    form = Form.anywhere(parse(flat(tmp_path / "run", **given)))
    kind = Kind(LARGE)
    cost = measure({**flat(tmp_path / "unused", **given)}, form, [kind], 16)[kind]
    assert run.summary["memory"]["largest"] == pytest.approx(cost.memory, rel=0.01)
    weights = sum(w.nbytes for w in run.model.values())
    assert cost.moved == (weights, weights) and cost.trained == LARGE
    samples = 3 * 3 * 120
    assert run.summary["flops"]["clients"] == samples * cost.operations / 16


@pytest.mark.parametrize("method", tiers(METHODS))
def test_the_clients_of_every_method_are_measured(method: str, tmp_path: Path) -> None:
    given = {"method": method, **OVERRIDES.get(method, {})}
    config = {**flat(tmp_path, **given), "clock.fit": "refuse", "profiles": "pi4"}
    parsed = parse(config)
    kinds = [Kind(architecture) for architecture in parsed.fleet]
    found = measure(config, Form.anywhere(parsed), kinds, 8)
    for kind, cost in found.items():
        least = 4 * models.parameters(cost.trained, *shape_of(parsed))
        assert cost.memory > 2 * least and cost.operations > 0, kind
        assert sum(cost.moved) > 0 or method == "local"
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_defence_with_public_samples_is_measured(tmp_path: Path) -> None:
    given = {"method": "fedavg", "fleet": SMALL, "data__public": 0.3, "average__robust": "fltrust"}
    config = {**flat(tmp_path, **given), "clock.fit": "refuse", "profiles": "pi4"}
    form = Form.anywhere(parse(config))
    assert form.public == 36
    cost = measure(config, form, [Kind(SMALL)], 8)[Kind(SMALL)]
    assert cost.memory == pytest.approx(needs(8, form, **given | {"average__robust": "none"}))


def shape_of(config: Any) -> tuple[Any, ...]:
    form = Form.anywhere(config)
    return form.shape, len(form.classes), config.run.stem, False, config.run.feature_dim


@pytest.mark.full
def test_a_network_that_does_not_fit_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    small = ["profiles=pi4,tiny-phone", "profile.tiny-phone.base=phone-low", "clock.fit=refuse"]
    small += ["profile.tiny-phone.memory=400000"]
    error = error_of("run", *words(*small), "--out", tmp_path / "run")
    form = Form((1, 8, 8), tuple("abc"), of_bytes=True)
    config = flat(tmp_path, method="local", fleet=f"{SMALL},{LARGE}", train__batch_size=16)
    kinds = [Kind(SMALL), Kind(LARGE)]
    gauge = Gauge({**config, "clock.fit": "refuse"}, form, kinds, 16)
    need, fits = gauge.cost(kinds[1]).memory, gauge.largest_batch(kinds[1], 200_000)
    assert f"error: client 1 (tiny-phone) cannot train {LARGE}: batches of 16 need {need:,.0f}" in (
        error
    )
    assert "the device has 400,000 · clock.memory-share = 0.5: 200,000" in error
    assert f"the largest train.batch-size that fits is {fits}\n" in error and 1 < fits < 16
    assert not (tmp_path / "run").exists()
    assert gauge.measured[kinds[1], fits].memory <= 200_000 < gauge._at(kinds[1], fits + 1).memory
    enough = [*small, f"train.batch-size={fits}"]
    assert typed("run", *words(*enough), "--out", tmp_path / "run", "--workers", 0).returncode == 0
    none = error_of("run", *words(*small, "profile.tiny-phone.memory=4000"))
    assert none.endswith("clock.memory-share = 0.5: 2,000; no batch fits\n")


def test_the_largest_batch_above_16_is_on_the_line(tmp_path: Path) -> None:
    kind = Kind(LARGE)
    config = flat(tmp_path, method="local", fleet=LARGE, clients=1)
    gauge = Gauge({**config, "clock.fit": "refuse"}, Form((1, 8, 8), ("a", "b"), True), [kind], 64)
    for batch in (24, 40):
        exact = measure(gauge.flat, gauge.form, [kind], batch)[kind].memory
        assert abs(gauge.largest_batch(kind, exact) - batch) <= 1
    assert {size for _, size in gauge.measured} == {16, 64}, "two trials"


@pytest.mark.full
def test_every_client_gets_the_largest_network_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = []

    def counted(*arguments: Any) -> Any:
        trials.append(arguments[2:])
        return measure(*arguments)

    monkeypatch.setattr(fit, "measure", counted)
    chosen = ["profiles=phone-low,tiny-phone", "profile.tiny-phone.base=phone-low"]
    chosen += ["profile.tiny-phone.memory=4e5", "clock.fit=choose", "node.0.model=mlp@0.5"]
    chosen += [f"clock.choices={SMALL},{LARGE}", "fleet=mlp", "clients=4"]
    done = typed("run", *words(*chosen), "--out", tmp_path, "--workers", 0)
    assert done.returncode == 0, done.stderr
    networks = {0: "mlp@0.5", 1: SMALL, 2: LARGE, 3: SMALL}
    saved = load_run(tmp_path)
    assert {k: saved[f"node.{k}.model"] for k in networks} == networks
    assert {m["k"]: m["model"] for m in TinyRun(tmp_path).journal[0]["clients"]} == networks
    assert f"client 2 (phone-low): {LARGE}, " in done.stdout and "of 1.00 GB" in done.stdout
    assert f"clients 1, 3 (tiny-phone): {SMALL}, " in done.stdout
    assert len(trials) == 1 and len(trials[0][0]) == 3, "each architecture once"
    again = typed("run", "--resume", tmp_path, "-s", "rounds=2", "--workers", 0)
    assert again.returncode == 0 and len(trials) == 1, "a resumed run keeps its networks"
    too_large = [*chosen, "node.1.model=cnn2@0.5"]
    error = error_of("run", *words(*too_large), "--out", tmp_path / "other")
    assert error.startswith(
        f"error: client 1 (tiny-phone) cannot train {LARGE}: batches of 16 need"
    )
    neither = [*chosen, "profile.tiny-phone.memory=4000"]
    error = error_of("run", *words(*neither), "--out", tmp_path / "other")
    assert f"client 1 (tiny-phone) cannot train {SMALL}, the smallest of 2 choices: " in error


@pytest.mark.full
@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("clock.fit-mb=0.03", "its messages of a round have 0.040376 MB, clock.fit-mb = 0.03"),
        ("clock.fit-seconds=0.1", "a round is predicted to take "),
    ],
)
def test_time_and_messages_are_limits_too(limit: str, reason: str, tmp_path: Path) -> None:
    given = ["method=feddf", "data.public=0.3", "profiles=slow", "profile.slow.base=dl4j-low"]
    given += ["profile.slow.flops=2e7", "clock.fit=refuse", limit]
    error = error_of("run", *words(*given), "--out", tmp_path)
    assert f"client 1 (slow) cannot train {LARGE}: {reason}" in error
    out = ["--out", tmp_path, "--workers", 0]
    chosen = typed("run", *words(*given, "clock.fit=choose"), *out)
    assert chosen.returncode == 0, chosen.stderr
    assert {load_run(tmp_path)[f"node.{k}.model"] for k in range(3)} == {SMALL}


def test_the_predicted_seconds_are_those_of_the_clock(tmp_path: Path) -> None:
    """2λ + 8·(D + U)/rate + s·o + O/(F·e), with the operations of the run."""
    given = flat(tmp_path, method="fedavg", fleet=SMALL, clients=2, train__epochs=3)
    given |= {"profiles": "pi4", "clock.fit": "refuse", "clock.fit-seconds": 1e-6}
    config = parse(given)
    decision = fit.Fit(given, Form.anywhere(config), lambda k: 48)
    why = decision.why_not(0, Kind(SMALL))
    weights, first = models.build(SMALL, (1, 8, 8), 3, seed=0).state_dict(), 64 * 32
    moved = sum(value.nbytes for value in weights.values())
    products = first + 32 * 32 + 32 * 3
    seconds = 2 * 0.005 + 2 * 8 * moved / 100e6 + 9 * 0.001
    seconds += 3 * 48 * 2 * (3 * products - first) / (24e9 * 0.3)
    assert why == f"a round is predicted to take {seconds:.6g} s, clock.fit-seconds = 1e-06"


@pytest.mark.full
def test_a_submitted_run_is_checked_without_the_clients_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = flat(tmp_path, method="local", fleet=f"{SMALL},{LARGE}", profiles="weak", clients=2)
    given |= {"profile.weak.base": "pi4", "profile.weak.memory": 2e6, "clock.fit": "choose"}
    given |= {"data.name": "cifar10", "data.dir": "/nowhere", "data.samples": 0}
    given |= {"data.test-samples": 0, "clock.choices": "mlp@0.0625,resnet18@0.25"}
    sent = submit.prepared(given, False, False)
    assert [sent[f"node.{k}.model"] for k in range(2)] == ["mlp@0.0625"] * 2
    assert "clients 0, 1 (weak): mlp@0.0625, " in capsys.readouterr().out
    for changes, line in (
        ({"clients": 0}, "clients = 0 is not allowed with clock.fit = 'choose' where the nodes"),
        ({"clock.fit-seconds": 9.0}, "clock.fit-seconds = 9 needs train.steps above 0, because"),
        ({"data.name": "folder"}, "clock.fit = 'choose' needs the form of the data here: "),
    ):
        with pytest.raises(ValueError, match=line):
            submit.prepared({**given, **changes}, False, False)
    assert json.dumps(sent)


def test_the_base_of_adapters_counts_and_a_device_gets_the_largest_rank_that_fits() -> None:
    form = Form((1, 8, 8), tuple("abc"), of_bytes=True)
    given = {"method": "hetlora", "fleet": "mlp-lora16,mlp-lora4", "clients": 2}
    kinds = [Kind("mlp-lora16"), Kind("mlp-lora4")]
    config = {**flat(Path("unused"), **given), "clock.fit": "choose", "profiles": "pi4,small"}
    config |= {"profile.small.base": "pi4", "clock.choices": "mlp-lora16,mlp-lora4"}
    large, small = measure(config, form, kinds, 16).values()
    base = 4 * models.parameters("mlp", form.shape, 3)
    factors = [4 * models.parameters(kind.architecture, form.shape, 3) for kind in kinds]
    assert small.memory > base + 3 * factors[1] and large.memory - small.memory > 3 * (
        factors[0] - factors[1]
    ), "with gradients and the message"
    config["profile.small.memory"] = large.memory + small.memory  # share 0.5
    assert {k: kind.architecture for k, kind in fit.Fit(config, form, None).decide().items()} == {
        0: "mlp-lora16",
        1: "mlp-lora4",
    }
