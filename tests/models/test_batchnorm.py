"""How a network's numbers lie in memory, and BatchNorm on statistics of the batch."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from common import seeds
from common.models import build
from common.models.batchnorm import Moments, batch_statistics, distances, measure, statistics
from common.settings.config import MemoryFormat
from common.training.device import FEWEST_CHANNELS, arrange


def is_last(net: nn.Module) -> bool:
    return any(
        p.ndim == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)
        for p in net.parameters()
    )


@pytest.mark.parametrize(
    ("net", "memory_format", "last"),
    [
        ("resnet8@0.5", "auto", True),
        ("resnet8@0.5", "contiguous", False),
        ("resnet8@0.25", "auto", False),
        ("resnet8@0.25", "channels-last", False),
        ("resnet18@0.0625", "channels-last", False),
        ("mobilenetv2@0.1", "auto", True),
        (nn.Conv2d(FEWEST_CHANNELS - 1, 8, 1, 2), "channels-last", False),
        (nn.Conv2d(FEWEST_CHANNELS, 8, 1, 2), "channels-last", True),
        (nn.Conv2d(FEWEST_CHANNELS, 8, 1, 2, groups=2), "channels-last", False),
        (nn.Conv2d(3, 8, 1, 1), "channels-last", True),
        (nn.Conv2d(3, 8, 3, 2), "channels-last", True),
    ],
    ids=str,
)
def test_a_network_with_few_channels_into_a_strided_1x1_convolution_keeps_the_default(
    net: str | nn.Module, memory_format: MemoryFormat, last: bool
) -> None:
    if isinstance(net, str):
        net = build(net, (3, 32, 32), 10, seed=0)
    else:
        net = nn.Sequential(nn.Conv2d(3, 5, 3), net)
    assert is_last(arrange(net, memory_format)) == last


STEP = """
import torch
from torch.nn import functional as F
from common.training.device import arrange, settle
from common.models import build

settle(1)
x = torch.randn(32, 1, 16, 16, generator=torch.Generator().manual_seed(1))
y = torch.arange(32) % 10
for spec in ("resnet8@0.25", "resnet8@0.5", "resnet8", "resnet10@0.25"):
    gradients = []
    for layout in ("auto", "contiguous"):
        net = arrange(build(spec, (1, 16, 16), 10, seed=0), layout).train()
        for _ in range(10):
            net.zero_grad()
            F.cross_entropy(net(x), y).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    one, other = gradients
    apart = float((one - other).norm() / other.norm())
    assert apart < 0.05, (spec, apart)  # rounding alone may turn a ReLU on or off
"""


@pytest.mark.full
def test_gradients_are_those_of_the_default_layout() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.named_buffers()}


def same(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[key]) for key, value in model.named_buffers())


def noise(n: int = 8) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=seeds.stream(0, "noise"))


def test_one_layer_normalises_by_the_batch_without_dropout() -> None:
    norm = nn.BatchNorm1d(1, eps=1e-12).eval()
    x = torch.tensor([[1.0], [3.0]])
    with batch_statistics(norm):
        out = norm(x)
    assert out.flatten().tolist() == pytest.approx([-1.0, 1.0])  # mean 2, standard deviation 1
    assert norm(x).flatten().tolist() == pytest.approx([1.0, 3.0])  # running: mean 0, variance 1
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = torch.random.get_rng_state()
    with batch_statistics(net):
        out = net(torch.randn(16, 4, generator=seeds.stream(0, "x")))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not out.eq(0).any() and net[1].training


@pytest.mark.parametrize("training", [True, False])
def test_logits_are_those_of_train_mode_and_no_buffer_moves(training: bool) -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0).train(training)
    before = buffers(model)
    with batch_statistics(model), torch.no_grad():
        logits = model(noise())
    assert same(model, before)
    assert model.training is training
    assert torch.equal(model.train()(noise()), logits)
    assert not same(model, before)  # the ordinary train mode does move them
    group = build("resnet8-gn16", (3, 8, 8), 10, seed=0).eval()
    with batch_statistics(group), torch.no_grad():
        inside = group(noise())
    assert torch.equal(group(noise()), inside), "GroupNorm is not affected"


def test_buffers_stay_the_same_unless_they_are_not_protected() -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0)
    before = buffers(model)
    with batch_statistics(model):
        model(noise() * float("inf"))
        for protect in (True, False):  # the inner block may not protect
            with batch_statistics(model, protect=protect):
                model(noise())
        model(noise())
    assert same(model, before)
    model(noise())
    assert not same(model, before)
    model, twin = (build("resnet8", (3, 8, 8), 10, seed=0) for _ in range(2))
    with batch_statistics(model, protect=False):
        model(noise())
    twin.train()(noise())
    assert same(model, buffers(twin))
    assert model.get_buffer("bn1.num_batches_tracked") == 1
    model, twin = (build("resnet8", (3, 8, 8), 10, seed=0) for _ in range(2))
    x = noise().requires_grad_()
    with batch_statistics(model):
        model(x).square().sum().backward()
    y = noise().requires_grad_()
    twin.train()(y).square().sum().backward()
    assert torch.equal(x.grad, y.grad)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_modes_and_hooks_are_restored_also_after_an_exception() -> None:
    model = build("mobilenetv2@0.1", (3, 8, 8), 10, seed=0).eval()
    model.get_submodule("dropout").train()
    flags = [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]
    with pytest.raises(KeyError), batch_statistics(model):
        raise KeyError
    assert flags == [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]

    def failing() -> Iterator[torch.Tensor]:
        yield noise()
        raise OSError

    model = build("resnet8", (3, 8, 8), 10, seed=0).train()
    before = buffers(model)
    for by_batch in (True, False):
        with pytest.raises(OSError):
            measure(model, failing(), by_batch=by_batch)
    assert same(model, before) and all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def layers() -> nn.Sequential:
    """Two layers behind one another, in float64."""
    return nn.Sequential(nn.BatchNorm1d(1), nn.ReLU(), nn.BatchNorm1d(1)).double().eval()


X = [torch.tensor([[0.0], [2.0]]).double(), torch.tensor([[4.0], [10.0]]).double()]


@pytest.mark.parametrize(
    ("by_batch", "behind"),
    [
        (True, (0.5, 0.25)),  # each batch becomes ∓1, behind the ReLU 0 and 1
        (False, (4.0, 14.0)),  # running statistics are 0 and 1: samples stay as they are, but for ε
    ],
)
def test_measured_statistics_by_hand(by_batch: bool, behind: tuple[float, float]) -> None:
    net = layers()
    found = measure(net, X, by_batch=by_batch)
    numbers = {name: value.item() for name, value in found.items()}
    expected = {"0.running_mean": 4.0, "0.running_var": 14.0}  # (16 + 4 + 0 + 36) / 4
    expected |= {"2.running_mean": behind[0], "2.running_var": behind[1]}
    assert numbers == pytest.approx(expected, rel=1e-5 if by_batch else 1e-4)
    assert {value.dtype for value in found.values()} == {torch.float64}
    assert same(net, buffers(layers()))


def test_moments_do_not_depend_on_how_the_values_come_in_parts() -> None:
    x = torch.randn(60, 3, 4, 5, generator=seeds.stream(0, "x")).double() * 3 + 100
    whole, parts = Moments(), Moments()
    whole.add(x)
    for part in x.split([1, 20, 39]):
        parts.add(part)
    assert whole.count == parts.count == 60 * 20
    expected = x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(whole.mean, expected.mean(1))
    torch.testing.assert_close(whole.squares, expected.var(1, correction=0) * 1200)
    torch.testing.assert_close((parts.mean, parts.squares), (whole.mean, whole.squares))


def test_a_layer_that_no_batch_reaches_keeps_what_it_has() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
            self.untracked = nn.BatchNorm1d(1, track_running_stats=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.untracked(self.used(x))  # type: ignore[no-any-return]

    found = measure(Aside().double(), X, by_batch=True)
    assert found["used.running_mean"].item() == 4.0
    assert found["unused.running_mean"].item() == 0.0
    assert found["unused.running_var"].item() == 1.0
    assert sorted(found) == sorted(statistics(Aside()))


def test_images_follow_the_distance_of_inputs_from_the_running_statistics() -> None:
    # channel 0: 1 and 3 (mean 2, variance 1) against 0 and 1; channel 1: 0 and 8 (4, 16) against
    # 1 and 4: ‖(0, 12)‖ + ‖(2, 3)‖
    norm = nn.BatchNorm1d(2).eval()
    norm.running_mean = torch.tensor([0.0, 1.0])
    norm.running_var = torch.tensor([1.0, 4.0])
    x = torch.tensor([[1.0, 0.0], [3.0, 8.0]])
    with distances(nn.Sequential(norm)) as found:
        norm(x)
        norm(torch.tensor([[-1.0, -1.0], [1.0, 3.0]]))
    assert [float(value) for value in found] == pytest.approx([12 + 13**0.5, 0.0])
    norm(x)
    assert len(found) == 2  # nothing is left behind
    model = build("resnet8", (3, 8, 8), 10, seed=0).eval()
    x = noise().requires_grad_()
    apart = []
    for _ in range(8):
        with distances(model) as found:
            model(x)
        loss = torch.stack(found).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        x = (x - 0.05 * gradient / gradient.abs().max()).detach().requires_grad_()
        apart.append(float(loss.detach()))
    assert len(found) == 9 and apart == sorted(apart, reverse=True) and apart[-1] < apart[0]
