"""Shares of a GPU's memory for the worker processes whose clients train on it at the same time."""

from copy import deepcopy
from operator import itemgetter

import torch

from common.data import kinds
from common.data.shares import for_testing
from common.settings.config import Config
from common.training import device
from common.training.costs import following
from common.training.task import Task

CONTEXT = 512 * 2**20
"""Bytes that CUDA takes in a process before its first tensor; an assumption, as drivers differ."""
GB = 10**9

Shares = dict[str, float]  #: part of a device's memory for each worker, by the device's name


def share(config: Config, workers: int, *, asked: bool) -> tuple[int, Shares]:
    """Return the number of workers, and the part of each GPU's memory that a worker may take.

    The memory that is free at the start, less ``CONTEXT`` for each worker, is divided evenly among
    the workers and the server. ``asked``: whether the user set the number; otherwise it is lowered
    until a client fits. Raises ``ValueError``, one line, if a client's training does not fit.
    """
    shares: Shares = {}
    needs = _needs(config) if workers else {}
    for gpu, (spec, need) in needs.items():
        free, _ = device.memory(gpu) or (0, 0)
        most = (free - need) // (need + CONTEXT)  # free − m · CONTEXT ≥ (m + 1) · need
        if most < 1 or (asked and most < workers):
            portion = max(0, _bytes_each(free, workers)) / GB
            advice = f"take at most --workers {most}" if most > 0 else "take --workers 0 or the CPU"
            raise ValueError(
                f"--workers {workers}: {portion:.3g} GB of {gpu} for each ({free / GB:.3g} GB are "
                f"free), but training {spec} takes at least {need / GB:.3g} GB; {advice}"
            )
        workers = min(workers, most)
    for gpu in needs:
        free, total = device.memory(gpu) or (0, 1)
        shares[str(gpu)] = _bytes_each(free, workers) / total
    return workers, shares


def _bytes_each(free: int, workers: int) -> float:
    """Return the bytes for each worker and the server."""
    return (free - workers * CONTEXT) / (workers + 1)


def _needs(config: Config) -> dict[torch.device, tuple[str, int]]:
    """Return for each GPU that clients use the architecture with the largest need, in bytes."""
    clients = dict[tuple[str, str], None]()  # device and architecture, each pair once
    for k in range(config.run.clients):
        node, entry = config.node(k), config.fleet[k % len(config.fleet)]
        name = str(node.get("device", config.run.device))
        clients[name, str(node.get("model", entry))] = None
    used = [(device.choose(name), spec) for name, spec in clients]
    if not (used := [pair for pair in used if device.memory(pair[0]) is not None]):
        return {}
    data = for_testing(config.data, config.run.clients, config.partition_seed)
    task = Task.of(config, data, torch.device("cpu"))
    needs: dict[torch.device, tuple[str, int]] = {}
    for gpu, spec in used:
        needs[gpu] = max(needs.get(gpu, ("", 0)), (spec, least(task, spec)), key=itemgetter(1))
    return needs


def least(task: Task, spec: str) -> int:
    """Return the fewest bytes that local training takes under any method: the peak of two steps.

    The second step finds the optimiser's state of the first. Both are followed on tensors without
    values (torch's device ``meta``); bf16 halves what a step takes beside the tensors that stay.
    Further networks of a method, the client's images and temporary memory of kernels are not
    included. Return 0 if ``meta`` lacks an operation of the network.
    """
    try:
        empty = task.without_values(spec)
        with following(True) as memory:
            net = deepcopy(empty).train()
            meta = torch.device("meta")
            samples = kinds.zeros(task.config.train.batch_size, task.shape, meta)
            optimizer = task.optimizer(0, net.parameters())
            for group in optimizer.param_groups:
                group["fused"] = False  # torch has no such kernels for meta
            for _ in range(2):
                optimizer.zero_grad()
                net(samples).sum().backward()
                optimizer.step()
    except NotImplementedError:
        return 0
    activations = memory.most - memory.now
    return memory.most - (activations // 2 if task.config.run.precision == "bf16" else 0)
