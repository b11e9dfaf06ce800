"""Decision regions of a finished run on points in the plane (FedORION, Figure 1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from client_app.methods import make
from client_app.participant import Participant
from common.data import Dataset
from common.data.batches import normalise
from common.models.batchnorm import recalibrate
from common.models.classifier import Classifier
from common.section import Value
from deploy.report.style import PAPER, series, style
from deploy.study.finished import finished

SIDE = 200  #: points of the grid along each axis


@style(ticks=False)
def draw(folder: Path) -> Figure:
    """Two rows: every client's model and the server's, before round 1 and after the last.

    On a client's panels lie its own training points, on the server's all of them. A client without
    a model of its own has no panel.

    Raises ``ValueError`` if there is no finished run in ``folder`` or its samples are not points in
    the plane.
    """
    run = finished(folder)
    config, data = run.config, run.dataset()
    if data.shape != (2, 1, 1):
        raise ValueError(f"{folder} is a run on samples of shape {data.shape}, not on points")
    columns: list[tuple[str, list[Classifier], tuple[Tensor, Tensor]]] = []
    for k in range(config.run.clients):
        node: dict[str, Value] = {"partition-id": k, "device": "cpu"}
        participant = Participant(config, node, config.run.experiment)
        handler = make(participant)
        own = [handler.own_model(t) for t in (0, config.run.rounds)]
        nets = [net for net in own if net is not None]
        if len(nets) == 2:
            columns.append((f"client {k}: {handler.spec}", nets, participant.train_set))
    server = [run.server_model(run.task(data), trained=trained) for trained in (False, True)]
    if config.score.bn != "running":
        recalibrate(server[1], [normalise(data.x_test, data.mean, data.std)])
    columns.append((f"server: {server[0].spec}", server, (data.x, data.y)))
    drawing = Figure(figsize=(2.3 * len(columns) + 0.3, 4.9), layout="constrained")
    grid = drawing.subplots(2, len(columns), squeeze=False)
    for j, (title, nets, points) in enumerate(columns):
        for axes, net in zip(grid[:, j], nets, strict=True):
            _panel(axes, net, points, data)
        grid[0, j].set_title(title, fontsize=9.5)
    grid[0, 0].set_ylabel("before round 1")
    grid[1, 0].set_ylabel(f"after round {config.run.rounds}")
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
    """The class of every point of a grid over [−reach, reach]²: int [side, side], rows upwards."""
    axis = torch.linspace(-reach, reach, side)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    grid = torch.stack([first, second], dim=-1).reshape(-1, 2, 1, 1)
    logits = net.eval()(normalise(grid, data.mean, data.std))
    classes: np.ndarray = logits.argmax(1).view(side, side).numpy()
    return classes
