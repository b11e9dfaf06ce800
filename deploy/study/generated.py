"""``fedmosaic samples``: what the generators of a finished run imagine, class by class.

The average of many generated images in each class, by the word of the run's own model, under the
average of the real ones (FedKF, figures 2 and 3).
"""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from client_app.methods.fedkf import Memory
from client_app.store import Store
from common import seeds
from common.data.batches import normalise
from common.data.dataset import Dataset
from common.datafree import new_generator
from common.models.generator import Generator
from common.records import StateDict
from common.task import Task
from deploy.report.style import style
from deploy.study.finished import Finished, finished
from server_app.keep import checkpoint
from server_app.methods.dafl import State as DAFLState

BATCH = 256


@final
class Averages:
    """Mean pixels [C, H, W] in [0, 1] and number of images for every class."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        self.sums = torch.zeros(classes, *shape, dtype=torch.float64)
        self.counts = torch.zeros(classes, dtype=torch.int64)

    def add(self, pixels: Tensor, labels: Tensor) -> None:
        """``pixels`` [n, C, H, W] in [0, 1], ``labels`` [n]."""
        self.sums.index_add_(0, labels, pixels.double())
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    @property
    def images(self) -> Tensor:
        return self.sums / self.counts.clamp_min(1)[:, None, None, None]


@torch.no_grad()
def imagine(folder: Path, images: int) -> tuple[Averages, Averages, Dataset]:
    """Averages of real and of ``images`` generated images in all, by class.

    The generators are those that the clients of the run in ``folder`` kept, or the server's of
    DAFL. Raises ``ValueError``, one line: no finished run, neither method's, no generator found.
    """
    run = _opened(folder)
    config, dataset = run.config, run.dataset()
    task = run.task(dataset)
    net, generators = run.server_model(task), _generators(run, task)
    generated = Averages(dataset.num_classes, dataset.shape)
    draw = seeds.stream(config.run.seed, "samples")
    for i, generator in enumerate(generators):
        left = images * (i + 1) // len(generators) - images * i // len(generators)
        while left > 0:
            n = min(left, BATCH)
            pixels = generator.pixels(generator.latents(n, draw))
            generated.add(pixels, net((pixels - generator.mean) / generator.std).argmax(1))
            left -= n
    real = Averages(dataset.num_classes, dataset.shape)
    for start in range(0, len(dataset.y), BATCH):
        part = slice(start, start + BATCH)
        nothing, one = (0.0,) * dataset.shape[0], (1.0,) * dataset.shape[0]
        real.add(normalise(dataset.x[part], nothing, one), dataset.y[part])
    return real, generated, dataset


@style(ticks=False)
def draw(real: Averages, generated: Averages, classes: tuple[str, ...]) -> Figure:
    """A column for each class: the average real image above the average generated one."""
    n = len(classes)
    figure = Figure(figsize=(max(3.0, 0.95 * n), 2.6), layout="constrained")
    grid = figure.subplots(2, n, squeeze=False)
    for row, (averages, what) in enumerate(((real, "real"), (generated, "generated"))):
        for c, axes in enumerate(grid[row]):
            picture = averages.images[c].permute(1, 2, 0).numpy()
            grey = picture.shape[2] == 1
            axes.imshow(picture[:, :, 0] if grey else np.clip(picture, 0, 1), cmap="gray")
            if row == 0:
                axes.set_title(classes[c], fontsize=7.5)
            axes.set_xlabel(f"{int(averages.counts[c]):,}", fontsize=7.0)
        grid[row][0].set_ylabel(what)
    return figure


def write(folder: Path, images: int, out: Path) -> Averages:
    """Draw to ``out`` (PNG); returns the generated averages.

    Raises ``ValueError`` as ``imagine``, and for a file that cannot be written.
    """
    _opened(folder)  # its mistakes first
    if not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.resolve().parent} does not exist")
    real, generated, dataset = imagine(folder, images)
    draw(real, generated, dataset.classes).savefig(out, format="png", dpi=160)
    return generated


def _opened(folder: Path) -> Finished:
    run = finished(folder)
    if run.config.run.method not in ("fedkf", "dafl"):
        raise ValueError(
            f"{folder} is a run of {run.config.run.method}; only fedkf and dafl train generators"
        )
    return run


def _generators(run: Finished, task: Task) -> list[Generator]:
    """The newest generator of every client that has one, in order of k; or the server's (DAFL)."""
    folder, config = run.folder, run.config
    if config.run.method == "dafl":
        state = DAFLState.model_validate(checkpoint.read(folder, config).state)
        return [_generator(task, state.generator)]
    own = folder / "state"  # where a run keeps it unless told otherwise, also in a copied folder
    root = own if own.is_dir() else Path(config.run.state_dir)
    found = []
    for k in range(config.run.clients):
        if not (root / config.run.experiment / str(k)).is_dir():
            continue
        memory = Store(root, config.run.experiment, k).recall(config.run.rounds + 1, Memory)
        if memory is not None:
            found.append(_generator(task, memory.generator))
    if not found:
        raise ValueError(f"no client of {folder} has kept a generator under {root}")
    return found


def _generator(task: Task, weights: StateDict) -> Generator:
    generator = new_generator(task)
    generator.load_state_dict(weights)
    return generator.eval()
