"""What each system is given: the same images, the same network, the same numbers.

The scripts beside this file use nothing else of this project. A script prints one line of JSON for
each round as it ends, and ``ready`` before the first.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet5(nn.Module):
    """LeNet-5 on images (n, 1, 32, 32), as ours: ReLU, max pooling, no normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc, self.head = nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.conv3(x)).flatten(1)
        logits: Tensor = self.head(torch.relu(self.fc(x)))
        return logits


class Work:
    """``folder`` holds ``work.json`` (numbers) and ``work.npz`` (uint8 images, labels)."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "work.json").read_text())
        self.clients, self.rounds = int(told["clients"]), int(told["rounds"])
        self.batch, self.lr = int(told["batch"]), float(told["lr"])
        with np.load(folder / "work.npz") as arrays:
            self.x, self.y = self._tensors(arrays["x"], arrays["y"])
            self.test = self._tensors(arrays["test_x"], arrays["test_y"])

    @staticmethod
    def _tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
        images = (torch.from_numpy(x).float() / 255 - 0.2860) / 0.3530
        return images, torch.from_numpy(y).long()

    def share(self, k: int) -> tuple[Tensor, Tensor]:
        """Client k's images and labels, of equal size for all."""
        size = len(self.x) // self.clients
        rows = slice(k * size, (k + 1) * size)
        return self.x[rows], self.y[rows]

    def accuracy(self, net: nn.Module) -> float:
        """On the test images."""
        net.eval()
        with torch.no_grad():
            right = sum(
                int((net(x).argmax(1) == y).sum())
                for x, y in zip(self.test[0].split(500), self.test[1].split(500), strict=True)
            )
        return right / len(self.test[1])


def work() -> Work:
    """The work in the folder that the command line names."""
    torch.set_num_threads(1)
    return Work(Path(sys.argv[1]))


def tell(**what: object) -> None:
    """A line for who measures; the time is the wall clock's."""
    print(json.dumps({"at": time.time(), **what}), flush=True)
