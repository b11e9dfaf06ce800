"""Pictures of the models of a finished run: decision regions and generated images.

``fedmosaic study regions``: decision regions on points in the plane (FedORION, Figure 1).
``fedmosaic study samples``: the average of many generated images in each class below the average
of the real ones (FedKF, figures 2 and 3). The run's own model classifies the generated images.
"""

from pathlib import Path
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from client_app.methods.fedkf import FedKF
from common import seeds
from common.data import Dataset
from common.data.batches import normalise
from common.data.kinds import IMAGE, Shape, describe
from common.models.batchnorm import measure
from common.models.classifier import Classifier
from common.models.generator import Generator
from common.techniques.datafree import new_generator
from common.training.task import Task
from deploy.report.style import PAPER, frames, save, series, style
from deploy.study.finished import Finished, finished
from server_app.methods.dafl import DAFL

BATCH = 256
SIDE = 200  #: points of the grid along each axis


@style(ticks=False)
def regions(folder: Path) -> Figure:
    """Plot the regions of every client's model and the server's in two rows: before and after.

    The rows are before round 1 and after the last round. A client's panels show its training
    points, the server's all of them. A client without an own model has no panel.

    Raises ``ValueError`` if ``folder`` has no finished run or its samples are not points in the
    plane.
    """
    run = finished(folder)
    config, data = run.config, run.dataset_of_classes()
    if data.shape != (2,):
        raise ValueError(f"{folder} is a run on {describe(data.shape)}, not on points in the plane")
    columns: list[tuple[str, list[Classifier], tuple[Tensor, Tensor]]] = []
    for k in range(config.run.clients):
        handler = run.client(k)
        models = [handler.own_model(t) for t in (0, config.run.rounds)]
        nets = [net for net in models if net is not None]
        if len(nets) == 2:
            columns.append((f"client {k}: {handler.spec}", nets, handler.participant.train_set))
    server = [run.server_model(run.task(data), trained=trained) for trained in (False, True)]
    if config.score.bn == "batch":
        test = [normalise(data.x_test, data.mean, data.std)]
        server[1].load_state_dict(measure(server[1], test, by_batch=True), strict=False)
    columns.append((f"server: {server[0].spec}", server, (data.x, data.y)))
    drawing, grid = frames((2.3 * len(columns) + 0.3, 4.9), 2, len(columns))
    for j, (title, nets, points) in enumerate(columns):
        for axes, net in zip(grid[:, j], nets, strict=True):
            _panel(axes, net, points, data)
        grid[0, j].set_title(title, fontsize=9.5)
    grid[0, 0].set_ylabel("before round 1")
    grid[1, 0].set_ylabel("after the last round")
    return drawing


def _panel(axes: Axes, net: Classifier, points: tuple[Tensor, Tensor], data: Dataset) -> None:
    colours = [series(c) for c in range(data.num_classes)]
    reach = 1.1 * float(data.x.abs().max())
    axes.imshow(
        decisions(net, data, reach),
        origin="lower",
        extent=(-reach, reach, -reach, reach),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=data.num_classes - 0.5,
        alpha=0.3,
        interpolation="nearest",
    )
    x, y = points[0].flatten(1).T.numpy()
    shown = [colours[int(label)] for label in points[1]]
    axes.scatter(x, y, c=shown, s=7, edgecolors=PAPER, linewidths=0.3)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))


@torch.no_grad()
def decisions(net: Classifier, data: Dataset, reach: float, side: int = SIDE) -> np.ndarray:
    """Return the class of every point of a grid over [−reach, reach]²: int [side, side].

    The first row has the smallest second coordinate.
    """
    axis = torch.linspace(-reach, reach, side)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    grid = torch.stack([first, second], dim=-1).reshape(-1, 2)
    logits = net.eval()(normalise(grid, data.mean, data.std))
    classes: np.ndarray = logits.argmax(1).view(side, side).numpy()
    return classes


@final
class Averages:
    """Mean pixels [C, H, W], in [0, 1], and number of images of every class."""

    def __init__(self, classes: int, shape: Shape) -> None:
        self.sums = torch.zeros(classes, *shape, dtype=torch.float64)
        self.counts = torch.zeros(classes, dtype=torch.int64)

    def add(self, pixels: Tensor, labels: Tensor) -> None:
        """Add images: ``pixels`` [n, C, H, W] in [0, 1], ``labels`` [n]."""
        self.sums.index_add_(0, labels, pixels.double())
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    @property
    def images(self) -> Tensor:
        return self.sums / self.counts.clamp_min(1)[:, None, None, None]


@torch.no_grad()
def average_images(folder: Path, images: int) -> tuple[Averages, Averages, Dataset]:
    """Return class averages of real and of ``images`` generated images, and the data set.

    The generators come from the states of the run's clients, or from the server for DAFL. Raises
    ``ValueError``, one line, without a finished run of fedkf or dafl on images, or without
    generators.
    """
    run = finished(folder)
    config, dataset = run.config, run.dataset_of_classes()
    if config.run.method not in ("fedkf", "dafl"):
        raise ValueError(
            f"{folder} is a run of {config.run.method}; only fedkf and dafl train generators"
        )
    if dataset.kind is not IMAGE:
        raise ValueError(f"{folder} is a run on {describe(dataset.shape)}, not on images")
    task = run.task(dataset)
    net, generators = run.server_model(task), _generators(run, task)
    generated = Averages(dataset.num_classes, dataset.shape)
    draw = seeds.stream(config.run.seed, "samples")
    for i, generator in enumerate(generators):
        left = images * (i + 1) // len(generators) - images * i // len(generators)
        for start in range(0, left, BATCH):
            pixels = generator.pixels(generator.latents(min(left - start, BATCH), draw))
            generated.add(pixels, net((pixels - generator.mean) / generator.std).argmax(1))
    real = Averages(dataset.num_classes, dataset.shape)
    zeros, ones = (0.0,) * dataset.shape[0], (1.0,) * dataset.shape[0]
    for x, y in zip(dataset.x.split(BATCH), dataset.y.split(BATCH), strict=True):
        real.add(normalise(x, zeros, ones), y)
    return real, generated, dataset


@style(ticks=False)
def averages(real: Averages, generated: Averages, classes: tuple[str, ...]) -> Figure:
    """Plot a column for each class: the average real image above the average generated one."""
    n = len(classes)
    figure, grid = frames((max(3.0, 0.95 * n), 2.6), 2, n)
    for row, source, label in zip(grid, (real, generated), ("real", "generated"), strict=True):
        for axes, image, count in zip(row, source.images, source.counts, strict=True):
            grey = len(image) == 1
            picture = image[0] if grey else image.clamp(0, 1).permute(1, 2, 0)
            axes.imshow(picture.numpy(), cmap="gray")
            axes.set_xlabel(f"{int(count):,}", fontsize=7.0)
        row[0].set_ylabel(label)
    for axes, name in zip(grid[0], classes, strict=True):
        axes.set_title(name, fontsize=7.5)
    return figure


def samples(folder: Path, images: int, out: Path) -> Averages:
    """Draw the averages to ``out``; return the averages of generated images.

    Raises ``ValueError`` as ``average_images``.
    """
    real, generated, dataset = average_images(folder, images)
    save(averages(real, generated, dataset.classes), out)
    return generated


def _generators(run: Finished, task: Task) -> list[Generator]:
    """Return each client's newest generator, if any, in order of k; or the server's (DAFL)."""
    rounds, generators = run.config.run.rounds, list[Generator]()
    if run.config.run.method == "dafl":
        method = run.method(task)
        assert isinstance(method, DAFL)
        generator = new_generator(task)
        generator.load_state_dict(method.generator)
        generators.append(generator)
    for half in map(run.client, range(run.config.run.clients)):
        if isinstance(half, FedKF) and half.participant.folder.is_dir():
            own = half.own_generator(rounds)
            generators += [] if own is None else [own]
    if not generators:
        root = run.config.run.state_dir
        raise ValueError(f"no client of {run.folder} has saved a generator under {root}")
    return [generator.eval() for generator in generators]
