"""Uninitialised memory is not filled: no network reads it, so the bits are the same."""

import pytest
import torch
import torch.nn.functional as F

from common import models
from common.data.kinds import zeros
from common.training import device

NETWORKS = ("mlp", "lenet5", "cnn2", "resnet8", "gru")


def trained(name: str, *, fill: bool) -> dict[str, torch.Tensor]:
    """Return the weights of a network after three steps."""
    device.settle(1)
    assert torch.utils.deterministic.fill_uninitialized_memory is False
    torch.utils.deterministic.fill_uninitialized_memory = fill
    shape = models.MODELS[name].input
    net = models.build(name, shape, 3, seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    rng = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(zeros(4, shape).shape, generator=rng)
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("name", NETWORKS)
def test_filling_memory_changes_no_bit(name: str) -> None:
    try:
        filled = trained(name, fill=True)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = False
    usual = trained(name, fill=False)
    assert all(torch.equal(filled[key], value) for key, value in usual.items())
