"""The analysis in pictures: CKA as bars and heat maps, one class on a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from deploy.report.figures import style
from deploy.report.palette import series
from deploy.study.similarity import Map


def bars(means: Mapping[str, Mapping[str, float]]) -> Figure:
    """Mean CKA of two clients by stage, one bar for each run (Figure 5).

    ``means``: by run, by stage.
    """
    with style():
        figure = Figure(figsize=(6.2, 3.1), layout="constrained")
        axes = figure.add_subplot()
        names = list(dict.fromkeys(stage for stages in means.values() for stage in stages))
        width = 0.8 / len(means)
        for i, (label, stages) in enumerate(means.items()):
            at = np.arange(len(names)) + (i - (len(means) - 1) / 2) * width
            heights = [stages.get(name, np.nan) for name in names]
            axes.bar(at, heights, 0.92 * width, color=series(i), label=label)
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(0, 1)
        axes.set_ylabel("CKA, mean over pairs of clients")
        figure.legend(loc="outside upper center", ncols=min(len(means), 3))
        return figure


def heat_maps(matrices: Mapping[str, Tensor], labels: Sequence[str]) -> Figure:
    """CKA of every pair of clients, one map for each stage (Figure 6).

    ``matrices``: [m, m] by stage; ``labels``: of the m clients.
    """
    with style():
        figure = Figure(figsize=(3.3 * len(matrices) + 0.8, 3.4), layout="constrained")
        every = np.atleast_1d(figure.subplots(1, len(matrices)))
        for i, (axes, (stage, matrix)) in enumerate(zip(every, matrices.items(), strict=True)):
            image = axes.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="viridis")
            axes.grid(visible=False)
            axes.set_title(stage, fontsize=9.5)
            axes.set_xticks(range(len(labels)), [label.partition(" ")[0] for label in labels])
            axes.set_yticks(range(len(labels)), labels if i == 0 else [""] * len(labels))
        figure.colorbar(image, ax=list(every), shrink=0.8)
        return figure


def plane(found: Map) -> Figure:
    """One class's features, a colour for each architecture (Figure 7)."""
    with style():
        figure = Figure(figsize=(4.4, 3.9), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, points) in enumerate(found.points.items()):
            x, y = np.asarray(points).T
            axes.plot(x, y, "o", color=series(i), markersize=4, alpha=0.7, label=name)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.set_title(f"{found.class_name}, {found.stage}", fontsize=9.5)
        figure.legend(loc="outside lower center", ncols=len(found.points))
        return figure
