"""Analyse finished runs and write what was found."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from matplotlib.figure import Figure
from rich.table import Table

from common.files import write_atomically
from common.models import count
from common.models.classifier import Split
from deploy.study import similarity_figures as figures
from deploy.study.further_round import Further, further_round
from deploy.study.overheads import overheads
from deploy.study.similarity import class_map, mean_pair, similarity

CAPTION = (
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


def analyse(folders: list[Path], to: Path, options: Options) -> tuple[list[Path], Table]:
    """Analyse each run; the files written under ``to``, and the numbers as a table.

    Raises ``ValueError``, one line, for a run that cannot be analysed.
    """
    if options.clients < 2 or options.images < 2:
        raise ValueError("an analysis takes 2 or more clients and 2 or more images")
    to.mkdir(parents=True, exist_ok=True)
    labels = _labels(folders)
    found: dict[str, Any] = {}
    written: list[Path] = []
    for label, folder in zip(labels, folders, strict=True):
        with further_round(folder, options.clients, options.workers) as further:
            found[label], pictures = _one(further, options)
        for name, figure in pictures.items():
            written.append(_save(figure, to / f"{label}-{name}.png"))
    bars = figures.bars({label: one["cka"] for label, one in found.items()})
    written.append(_save(bars, to / "cka.png"))
    path = to / "analysis.json"
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
    return [*written, path], _table(found)


def _one(further: Further, options: Options) -> tuple[dict[str, Any], dict[str, Figure]]:
    data, config = further.dataset, further.config
    owned = further.networks()
    if len(owned) < 2:
        raise ValueError(f"the run has {len(owned)} client; CKA compares 2 or more")
    if not 0 <= options.label < data.num_classes:
        raise ValueError(f"class {options.label}: the data set has 0 to {data.num_classes - 1}")
    matrices = similarity([net for _, net in owned], data.x_test[: options.images], data, config)
    drawn = class_map(_three(owned), options.label, data, config, CLASS_IMAGES)
    names = [f"{client.k} {client.model}" for client, _ in owned]
    result = {
        "method": config.run.method,
        "clients": names,
        "cka": {stage: mean_pair(matrix) for stage, matrix in matrices.items()},
        "cka_pairs": {stage: matrix.tolist() for stage, matrix in matrices.items()},
        "tsne": asdict(drawn),
        "overheads": overheads(further),
    }
    return result, {"cka": figures.heat_maps(matrices, names), "tsne": figures.plane(drawn)}


def _three(owned: list[tuple[Any, Split]]) -> dict[str, Split]:
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


def _table(found: dict[str, Any]) -> Table:
    stages = list(dict.fromkeys(stage for one in found.values() for stage in one["cka"]))
    table = Table(box=None, header_style="bold", pad_edge=False, caption=CAPTION)
    columns = [*stages, "apart", "parameters", "more up", "memory"]
    table.add_column("run", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    for label, one in found.items():
        cost = one["overheads"]
        table.add_row(
            label,
            *(f"{one['cka'].get(stage, float('nan')):.3f}" for stage in stages),
            f"{one['tsne']['separation']:.3f}",
            f"{cost['parameters'] / 1e6:.2f} M",
            f"{cost['further_up']:,.0f}",
            f"{cost['memory_mb']:.1f} MB",
        )
    return table
