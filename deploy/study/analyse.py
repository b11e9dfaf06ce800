"""Analyse finished runs and write what was found."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from matplotlib.figure import Figure

from common.files import write_atomically
from common.models import count
from common.models.classifier import Split
from deploy.report.table import Table
from deploy.report.text import clean
from deploy.study.further_round import Further, further_round
from deploy.study.overheads import Overheads, overheads
from deploy.study.similarity import Map, bars, class_map, heat_maps, mean_pair, plane, similarity
from server_app.method import Client

NOTE = (
    "mean CKA of two clients by stage; apart: silhouette of the architectures in one class; "
    "parameters and further numbers a client sends in a round; memory to train"
)
CLASS_IMAGES = 100  #: of one class and architecture in the t-SNE


@final
@dataclass(frozen=True)
class Options:
    """What to look at."""

    clients: int  #: the first so many clients, at least 2
    images: int  #: the first so many test images
    label: int  #: the class of the t-SNE
    workers: int


@final
@dataclass(frozen=True)
class Analysis:
    """What was found in one run: CKA in [0, 1] by stage, the mean and of every pair [m][m]."""

    method: str
    clients: list[str]
    cka: dict[str, float]
    cka_pairs: dict[str, list[list[float]]]
    tsne: Map
    overheads: Overheads


def analyse(folders: list[Path], to: Path, options: Options) -> tuple[list[Path], Table]:
    """Analyse each run; the files written under ``to``, and the numbers as a table.

    Raises ``ValueError``, one line, for a run that cannot be analysed.
    """
    if options.clients < 2 or options.images < 2:
        raise ValueError("an analysis takes 2 or more clients and 2 or more images")
    to.mkdir(parents=True, exist_ok=True)
    labels = _labels(folders)
    found: dict[str, Analysis] = {}
    written: list[Path] = []
    for label, folder in zip(labels, folders, strict=True):
        with further_round(folder, options.clients, options.workers) as further:
            found[label], pictures = _one(further, options)
        for name, figure in pictures.items():
            written.append(_save(figure, to / f"{label}-{name}.png"))
    drawn = bars({label: one.cka for label, one in found.items()})
    written.append(_save(drawn, to / "cka.png"))
    path = to / "analysis.json"
    write_atomically(
        path, (json.dumps({k: asdict(one) for k, one in found.items()}, indent=1) + "\n").encode()
    )
    return [*written, path], _table(found)


def _one(further: Further, options: Options) -> tuple[Analysis, dict[str, Figure]]:
    data, task = further.dataset, further.method.task
    owned = further.networks()
    if len(owned) < 2:
        raise ValueError(f"the run has {len(owned)} client; CKA compares 2 or more")
    if not 0 <= options.label < data.num_classes:
        raise ValueError(f"class {options.label}: the data set has 0 to {data.num_classes - 1}")
    matrices = similarity([net for _, net in owned], data.x_test[: options.images], task)
    drawn = class_map(_three(owned), options.label, data, task, CLASS_IMAGES)
    names = [f"{client.k} {client.model}" for client, _ in owned]
    result = Analysis(
        method=task.config.run.method,
        clients=names,
        cka={stage: mean_pair(matrix) for stage, matrix in matrices.items()},
        cka_pairs={stage: matrix.tolist() for stage, matrix in matrices.items()},
        tsne=drawn,
        overheads=overheads(further),
    )
    return result, {"cka": heat_maps(matrices, names), "tsne": plane(drawn)}


def _three(owned: list[tuple[Client, Split]]) -> dict[str, Split]:
    """The smallest, a middle one and the largest architecture, each of its first client."""
    firsts = {client.model: net for client, net in reversed(owned)}
    ordered = sorted(firsts, key=lambda spec: (count(firsts[spec]), spec))
    chosen = dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]])
    return {spec: firsts[spec] for spec in chosen}


def _labels(folders: list[Path]) -> list[str]:
    """The folders' own names, told apart where they are equal."""
    names = [folder.resolve().name for folder in folders]
    return [f"{n}-{i}" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]


def _save(figure: Figure, path: Path) -> Path:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    write_atomically(path, stream.getvalue())
    return path


def _table(found: Mapping[str, Analysis]) -> Table:
    stages = list(dict.fromkeys(stage for one in found.values() for stage in one.cka))
    rows = [
        (
            clean(label),
            *(f"{one.cka.get(stage, float('nan')):.3f}" for stage in stages),
            f"{one.tsne.separation:.3f}",
            f"{one.overheads.parameters / 1e6:.2f} M",
            f"{one.overheads.further_up:,.0f}",
            f"{one.overheads.memory_mb:.1f} MB",
        )
        for label, one in found.items()
    ]
    header = ("run", *stages, "apart", "parameters", "more up", "memory")
    return Table(header, rows, notes=(NOTE,))
