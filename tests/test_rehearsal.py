"""Every method on a device that is not the CPU, where tensors of two devices do not mix.

In a process of its own, which ``--rehearsal`` asks for; ``tests/support/rehearsal.py`` says why.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common import seeds
from common.settings.version import ROOT
from deploy.run import loopback, preload
from tests.support import battery
from tests.support.rehearsal import NAME, chosen, rehearsing
from tests.support.tiny import play

FIRST, OFTEN = ("fedavg", "fedkf"), ("fedgen", "fedgkt")
"""Plain and a generator of images with draws on the device; a generator of features, features."""
FEW = (FIRST, pytest.param(OFTEN, marks=pytest.mark.full))
there = pytest.mark.skipif("not config.getoption('--rehearsal')")
from_outside = pytest.mark.skipif("config.getoption('--rehearsal')")
HERE = "tests/test_rehearsal.py"
X = torch.arange(6.0).view(2, 3)
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x + X,
    "linear": lambda x: torch.nn.functional.linear(x, X),
    "cat": lambda x: torch.cat([x, X]),
    "stack of scalars": lambda x: torch.stack([x.sum(), X.sum()]),
    "written in place": lambda x: X.sum().add_(x.sum()),
    "indices of another device": lambda x: X[x.sum().long()[None]],
    "values of another device": lambda x: x.index_put_((torch.tensor([0]),), X[0]),
    "numpy": lambda x: x.numpy(),
    "the CPU's generator": lambda x: torch.rand(2, generator=seeds.stream(1, "a"), device=x.device),
    "its generator in place": lambda x: x.normal_(generator=seeds.stream(1, "a")),
    "its generator at the CPU": lambda x: torch.rand(
        2, generator=seeds.stream(1, "a", device=x.device)
    ),
}


def on_the_device(*tests: str) -> None:
    command = [sys.executable, "-m", "pytest", "--rehearsal", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@from_outside
@pytest.mark.parametrize("methods", FEW, ids=" ".join)
def test_some_methods_on_the_device(methods: tuple[str, ...]) -> None:
    bits = [f"{HERE}::test_it_gives_the_cpus_bits[{name}]" for name in methods]
    on_the_device(f"{HERE}::test_what_cuda_refuses_is_refused", *bits)


@from_outside
@pytest.mark.exhaustive
def test_the_whole_battery_on_the_device() -> None:
    on_the_device("-m", "", HERE, "tests/test_every_method.py")  # methods of all tiers


@there
@pytest.mark.parametrize("method", battery.METHODS)
def test_it_gives_the_cpus_bits(method: str, tmp_path: Path) -> None:
    here = play(battery.config(method, tmp_path / "cpu", rounds=2))
    with rehearsing():
        device = play(battery.config(method, tmp_path / NAME, rounds=2))
    assert device.timeless == here.timeless and device.weights == here.weights


@there
def test_two_workers_share_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "MODULES", [*preload.MODULES, "tests.support.rehearsal_worker"])
    here = play(battery.config("fedavg", tmp_path / "cpu", rounds=2))
    config = battery.config("fedavg", tmp_path / NAME, rounds=2)
    with rehearsing() as device:
        shares = {str(device): 0.3}
        grid = loopback.Loopback(int(config["clients"]), config, workers=2, shares=shares)
        both = play(config, grid)
        with loopback._start_pool(1, config, {str(device): 0.3}) as pool:
            assert pool.submit(chosen).result() == (str(device), {str(device): 0.3})
    assert both.timeless == here.timeless and both.weights == here.weights


@there
@pytest.mark.parametrize("what", REFUSED)
def test_what_cuda_refuses_is_refused(what: str) -> None:
    with rehearsing() as device, pytest.raises((RuntimeError, TypeError), match="device|numpy"):
        REFUSED[what](X.to(device))


@there
def test_what_cuda_allows_is_allowed() -> None:
    with rehearsing() as device:
        x = X.to(device)
        assert (x + X.sum()).device == device and x[torch.tensor([1])].device == device
        assert x.cpu().equal(X) and float(x.sum()) == 15.0
        drawn = torch.rand(2, generator=seeds.stream(1, "a", device=device), device=device)
        assert drawn.cpu().equal(torch.rand(2, generator=seeds.stream(1, "a")))
