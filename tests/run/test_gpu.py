"""Shares of a GPU's memory: what each worker gets, and what is refused before the first round."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from common.data.shares import for_testing
from common.parse import parse
from common.training import device
from common.training.costs import following
from common.training.task import Task
from deploy.run import gpu
from tests.support.tiny import flat

FREE, TOTAL = 3 * 10**9, 4 * 10**9


@pytest.fixture(autouse=True)
def with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory", lambda _: (FREE, TOTAL))


def test_the_least_of_a_linear_step_by_hand(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, fleet="mlp@0.25", train__momentum=0.9))
    task = Task.of(config, for_testing(config.data, 4, config.partition_seed), torch.device("cpu"))
    weights = 4 * task.parameters("mlp@0.25")
    found = gpu.least(task, "mlp@0.25")
    images = 4 * 16 * task.shape[0] * task.shape[1] * task.shape[2]
    assert 3 * weights + images <= found <= 3 * weights + 4 * images  # and the momentum's


@pytest.mark.parametrize("fleet", ["resnet8", "mobilenetv2"])
def test_the_least_is_nearly_what_two_steps_take_with_values(fleet: str, tmp_path: Path) -> None:
    config = parse(flat(tmp_path, fleet=fleet, train__momentum=0.9))
    task = Task.of(config, for_testing(config.data, 4, config.partition_seed), torch.device("cpu"))
    start = task.build(fleet, name=("init",))
    with following(True) as memory:
        net = deepcopy(start).train()
        optimizer = task.optimizer(0, net.parameters())
        images = torch.zeros(config.train.batch_size, *task.shape)
        for _ in range(2):
            optimizer.zero_grad()
            net(images).sum().backward()
            optimizer.step()
    assert 0.98 * memory.most <= gpu.least(task, fleet) <= memory.most


def test_what_is_free_is_shared_with_the_server(tmp_path: Path) -> None:
    workers, shares = gpu.share(parse(flat(tmp_path)), 3, asked=True)
    assert workers == 3 and shares == {"cpu": (FREE - 3 * gpu.CONTEXT) / 4 / TOTAL}


def test_too_many_workers_are_refused_or_lowered(tmp_path: Path) -> None:
    config = parse(flat(tmp_path))
    with pytest.raises(ValueError, match=r"--workers 9: .* take at most --workers 5"):
        gpu.share(config, 9, asked=True)
    assert gpu.share(config, 9, asked=False)[0] == 5
    assert gpu.share(config, 0, asked=True) == (0, {})
