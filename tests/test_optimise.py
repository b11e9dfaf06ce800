"""Optimisers and learning rates as the run config asks for them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from common.parse import parse
from common.settings.options import Descent, NoiseTraining
from common.training import optimise
from common.training.fit import fit
from server_app.stopped import Stopped
from tests.support.battery import config
from tests.support.halves import task
from tests.support.recorded_calls import record_calls, refusal
from tests.support.tiny import Run, TinyRun, flat, play


def rates(count: int, **changes: Any) -> list[float]:
    """The learning rates of a run of ``count`` rounds from 1.0."""
    o = Descent(lr=1.0, **changes)
    return [o.lr_at(t, count) for t in range(1, count + 1)]


def test_learning_rates_by_hand() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(3, lr_decay=0.5) == [1.0, 0.5, 0.25]
    assert rates(5, milestones="2, 3", milestone_factor=0.5) == [1.0, 1.0, 0.5, 0.25, 0.25]
    # ½ (1 + cos 0), ½ (1 + cos π/2); the next would be ½ (1 + cos π) = 0
    assert rates(2, cosine=True) == pytest.approx([1.0, 0.5])
    assert rates(2, cosine=True, lr_decay=0.5) == pytest.approx([1.0, 0.25])
    assert rates(4, cosine=True) == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_clients_and_server_have_own_schedules(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(made: optim.Optimizer, parameters: Any, o: Descent, *_: int) -> tuple[str, float]:
        side = "server" if isinstance(o, NoiseTraining) else "client"
        return side, made.param_groups[0]["lr"]

    seen = record_calls(monkeypatch, optimise, "of", rate)
    settings = {"train__lr": 0.1, "train__lr_decay": 0.5, "noise__lr": 0.2, "noise__cosine": True}
    run(method="fedftg-noise", clients=1, **settings)
    assert seen == [("client", 0.1), ("server", 0.2), ("client", 0.05), ("server", 0.1)]


@pytest.mark.parametrize("owner", ["fedkf", "dafl", "fedgen", "fedftg"])
def test_generators_have_own_ones(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = record_calls(monkeypatch, optim.RMSprop, "step", lambda _, o: o.param_groups[0]["lr"])
    rates = {"generator__lr": 0.01, "generator__lr_decay": 0.5, "generator__optimizer": "rmsprop"}
    few = {"dafl__server_steps": 2, "train__epochs": 1}
    play(config(owner, tmp_path, rounds=3, clients=2, **few, **rates))
    expected = [0.005, 0.0025] if owner == "fedkf" else [0.01, 0.005, 0.0025]
    assert list(dict.fromkeys(seen)) == expected


def test_adamw_and_any_other_class_of_torch_by_its_name() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    adamw = optimise.make(weights, "adamw", 0.1, weight_decay=0.2, options="betas = [0.5, 0.6]")
    assert isinstance(adamw, optim.AdamW)
    (group,) = adamw.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.2, (0.5, 0.6))
    rmsprop = optimise.make(weights, "RMSprop", 0.1, momentum=0.9, options="alpha=0.9,eps=1e-6")
    (group,) = rmsprop.param_groups
    assert isinstance(rmsprop, optim.RMSprop)
    assert (group["alpha"], group["eps"], group["momentum"]) == (0.9, 1e-6, 0)


@pytest.mark.parametrize("kind", sorted(optimise.KINDS))
def test_every_optimiser_on_the_list_takes_steps(kind: str) -> None:
    net, images = nn.Conv2d(1, 2, 3), torch.ones(1, 1, 3, 3)
    before = net.weight.detach().clone()
    optimizer = optimise.make(net.parameters(), kind, 0.1)
    fit(optimizer, [(images,)], lambda x: net(x).sum(), precision="fp32")
    assert not torch.equal(net.weight, before)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"train__optimizer": "RMSpop"},
            "train.optimizer = 'RMSpop' is unknown; did you mean 'rmsprop'?",
        ),
        ({"noise__optimizer": "LBFGS"}, "noise.optimizer = 'LBFGS' is unknown; allowed: "),
        (
            {"train__optimizer": "RMSprop", "train__optimizer_options": "alfa=0.9"},
            "train.optimizer-options = \"alfa=0.9\" is not allowed: RMSprop has no 'alfa'; "
            "did you mean 'alpha'?",
        ),
        (
            {"train__optimizer_options": "nesterov=yes"},
            'train.optimizer-options = "nesterov=yes" is not allowed: it is not like alpha = 0.9',
        ),
        (
            {"train__optimizer": "adam", "train__optimizer_options": "betas=[0.9, 2.0]"},
            'train.optimizer-options = "betas=[0.9, 2.0]" is not allowed: Invalid beta',
        ),
        (
            {"train__optimizer_options": "momentum=0.5"},
            'train.optimizer-options = "momentum=0.5" is not allowed: train.momentum is a setting',
        ),
        (
            {"train__optimizer": "Rprop", "train__weight_decay": 0.1},
            "train.weight-decay = 0.1: Rprop has none",
        ),
        ({"noise__milestones": "10,x"}, 'noise.milestones = "10,x" is not allowed; it should be'),
        ({"train__lr_decay": 1.5}, "train.lr-decay = 1.5 is not allowed; it should be less than"),
    ],
)
def test_what_cannot_be_made_is_one_line(changes: dict[str, Any], line: str) -> None:
    given = flat(Path("nowhere"), method="fedftg-noise", **changes)
    assert refusal(parse, given).startswith(line)


def test_what_follows_a_step_sees_the_weights_that_adam_left() -> None:
    weight = nn.Parameter(torch.zeros(1))
    seen = []

    def after() -> None:
        seen.append(weight.item())
        weight.add_(1.0)

    ours = task(train__optimizer="adam", train__lr=0.5)
    ours.fit(1, [weight], [(torch.ones(1),)] * 2, lambda x: (weight * x).sum(), after)
    # Adam's first steps are of length lr where the gradient is constant
    assert seen == pytest.approx([-0.5, 0.0], abs=1e-5)
    assert weight.item() == pytest.approx(1.0, abs=1e-5)


def test_the_steps_of_a_round_are_those_that_fit_counts(run: Run) -> None:
    # 65 samples in batches of 32: a last batch of one is left out, one of two is not
    assert [task(train__batch_size=32).steps(n) for n in (65, 66)] == [4, 6]
    assert task(train__batch_size=32, train__steps=5).steps(65) == 5
    skewed = {"data__partition": "quantity_dirichlet", "rounds": 1, "train__batch_size": 5}
    census, entry = run(method="fedavg", **skewed).journal
    expected = [task(train__batch_size=5).steps(client["n"]) for client in census["clients"]]
    assert [entry["client_metrics"][k]["steps"] for k in "0123"] == expected
    assert len(set(expected)) > 1


def test_a_longer_run_goes_on_unless_its_rate_falls_over_the_whole_run(run: Run) -> None:
    def longer(**changes: Any) -> TinyRun:
        played = run(method="fedavg", rounds=1, **changes)
        return play(flat(played.folder, method="fedavg", rounds=2, resume=True, **changes))

    whole = run(method="fedavg", rounds=2, train__lr_decay=0.5)
    assert longer(train__lr_decay=0.5).weights == whole.weights
    with pytest.raises(Stopped, match="was written with rounds = 1, this run has 2"):
        longer(train__cosine=True)
