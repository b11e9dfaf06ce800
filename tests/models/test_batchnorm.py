"""BatchNorm on batch statistics, without a trace; running statistics measured anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from common import seeds
from common.models import build
from common.models.batchnorm import batch_statistics, recalibrate


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.named_buffers()}


def same(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[key]) for key, value in model.named_buffers())


def noise(n: int = 8) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=seeds.stream(0, "noise"))


def test_one_layer_normalises_by_the_batch() -> None:
    norm = nn.BatchNorm1d(1, eps=1e-12).eval()
    x = torch.tensor([[1.0], [3.0]])
    with batch_statistics(norm):
        out = norm(x)
    assert out.flatten().tolist() == pytest.approx([-1.0, 1.0])  # mean 2, standard deviation 1
    assert norm(x).flatten().tolist() == pytest.approx([1.0, 3.0])  # running: mean 0, variance 1


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


def test_buffers_stay_the_same_even_for_infinite_inputs() -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0)
    before = buffers(model)
    with batch_statistics(model):
        model(noise() * float("inf"))
    assert same(model, before)


def test_without_protection_the_buffers_move_as_in_training() -> None:
    model, twin = (build("resnet8", (3, 8, 8), 10, seed=0) for _ in range(2))
    with batch_statistics(model, protect=False):
        model(noise())
    twin.train()(noise())
    assert same(model, buffers(twin))
    assert model.get_buffer("bn1.num_batches_tracked") == 1


def test_dropout_is_off() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    x = torch.randn(16, 4, generator=seeds.stream(0, "x"))
    before = torch.random.get_rng_state()
    with batch_statistics(net):
        out = net(x)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not out.eq(0).any()
    assert net[1].training


def test_gradients_are_those_of_train_mode() -> None:
    model, twin = (build("resnet8", (3, 8, 8), 10, seed=0) for _ in range(2))
    x = noise().requires_grad_()
    with batch_statistics(model):
        model(x).square().sum().backward()
    y = noise().requires_grad_()
    twin.train()(y).square().sum().backward()
    assert x.grad is not None and y.grad is not None
    assert torch.equal(x.grad, y.grad)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert torch.equal(p.grad, q.grad)


def test_modes_are_restored_module_by_module_after_an_exception() -> None:
    model = build("mobilenetv2@0.1", (3, 8, 8), 10, seed=0).eval()
    model.get_submodule("dropout").train()
    flags = [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]
    with pytest.raises(KeyError), batch_statistics(model):
        raise KeyError
    assert flags == [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]


def test_blocks_nest() -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0)
    before = buffers(model)
    with batch_statistics(model):
        with batch_statistics(model):
            model(noise())
        model(noise())
    assert same(model, before)
    model(noise())
    assert not same(model, before)


def test_an_unprotected_block_within_a_protected_one_stays_protected() -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0)
    before = buffers(model)
    with batch_statistics(model), batch_statistics(model, protect=False):
        model(noise())
    assert same(model, before)


def test_groupnorm_networks_are_not_affected() -> None:
    model = build("resnet8-gn16", (3, 8, 8), 10, seed=0).eval()
    with batch_statistics(model), torch.no_grad():
        inside = model(noise())
    with torch.no_grad():
        assert torch.equal(model(noise()), inside)


def test_recalibration_is_the_mean_over_batches_by_hand() -> None:
    norm = nn.BatchNorm1d(1).eval()
    norm(torch.zeros(2, 1))
    recalibrate(norm, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [10.0]])])
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.running_mean.tolist() == [4.0]  # (1 + 7) / 2
    assert norm.running_var.tolist() == [10.0]  # unbiased: (2 + 18) / 2
    assert norm.num_batches_tracked == 2
    assert norm.momentum == 0.1
    assert not norm.training


def test_recalibration_forgets_what_was_there_and_builds_no_graph() -> None:
    model, twin = (build("resnet8", (3, 8, 8), 10, seed=0) for _ in range(2))
    model.train()(noise() * 100)
    recalibrate(model, [noise()])
    recalibrate(twin, iter([noise()]))
    assert same(model, buffers(twin))
    assert all(not value.requires_grad for value in model.buffers())


def test_recalibration_without_a_batch_is_refused_and_changes_nothing() -> None:
    model = build("resnet8", (3, 8, 8), 10, seed=0)
    model(noise())
    before = buffers(model)
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate(model, [])
    assert same(model, before)


def test_recalibration_that_fails_puts_the_momentum_back() -> None:
    def failing() -> Iterator[torch.Tensor]:
        yield noise()
        raise OSError

    model = build("resnet8", (3, 8, 8), 10, seed=0)
    with pytest.raises(OSError):
        recalibrate(model, failing())
    norm = model.get_submodule("bn1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.momentum == 0.1 and norm.training
