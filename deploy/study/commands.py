"""``fedmosaic study``: single figures and measurements of the papers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.console import (
    Experiment,
    Folders,
    Settings,
    Workers,
    answer,
    finish,
    interruptible,
    out,
    place,
    plain,
    resolved,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, picture: Path) -> None:
    """Write a figure to ``picture`` and print the path."""
    figure.savefig(picture, dpi=150)
    plain(f"picture: {picture.resolve()}")


def noise(
    experiment: Experiment = None,
    settings: Settings = None,
    to: Annotated[Path, place("Path of the picture.")] = Path("noise.png"),
) -> None:
    """Draw eight samples of each kind of noise, and time each in the experiment's server step."""
    from common.settings.parse import parse
    from deploy.report.table import terminal
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    parse(flat, every=True)
    times = study.times(flat)
    out.print(*terminal(study.times_table(times), ruled=False))
    save(study.draw_kinds(), to)
    answer({"seconds": [asdict(time) for time in times], "picture": to.resolve()})


def information(
    experiment: Experiment = Path("noise_information_small"),
    settings: Settings = None,
    repeats: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, from 1 on.")] = 5,
    to: Annotated[Path, place("Folder of the results.")] = Path("information"),
) -> None:
    """Measure the information of noise about a teacher, and the accuracy of its student."""
    from deploy.report.table import terminal
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    known = study.load_measurements(flat, to)
    if known:
        plain(f"{len(known)} measurements are recorded in {to / study.FILE}")

    def record(one: study.Measurement) -> None:
        known.append(one)
        study.save_measurements(known, flat, to)
        plain(
            f"seed {one.seed}, {one.model} ({one.teacher:.1%}), {one.kind}, {one.bn} statistics: "
            f"{one.information:.3f} nats, student {one.student:.1%}"
        )

    with interruptible("the same command"):
        measured = study.study(flat, range(1, repeats + 1), tuple(known), record)
    out.print(*terminal(study.table(measured), ruled=False))
    written = study.write(measured, to)
    rows = [asdict(one) for one in measured]
    finish(written, found=rows, correlations=study.correlations(measured))


def regions(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a finished run on points in the plane.")
    ],
    to: Annotated[
        Path | None, place("Path of the picture; default: regions.png in the folder.")
    ] = None,
) -> None:
    """Draw the decision regions of clients and server, before and after training."""
    from deploy.study.pictures import regions as draw

    picture = to or folder / "regions.png"
    save(draw(folder), picture)
    answer({"picture": picture.resolve()})


def samples(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run of fedkf or dafl.")],
    images: Annotated[int, typer.Option(min=1, help="Total number of generated images.")] = 2000,
    to: Annotated[
        Path | None, place("Path of the picture; default: samples.png in the folder.")
    ] = None,
) -> None:
    """Draw mean images by class of a run's generators, below those of the real data."""
    from deploy.study.pictures import samples as write

    picture = (to or folder / "samples.png").resolve()
    counts = write(folder.resolve(), images, picture).counts.tolist()
    out.print(f"images by class: {counts}")
    plain(f"samples: {picture}")
    answer({"images_by_class": counts, "picture": picture})


def analyse(
    folders: Folders,
    clients: Annotated[int, typer.Option(help="Number of clients, from client 0 on.")] = 10,
    images: Annotated[int, typer.Option(help="Number of test images, from the first on.")] = 500,
    label: Annotated[int, typer.Option("--class", help="Class of the t-SNE.")] = 0,
    to: Annotated[
        Path | None, place("Folder of the results; default: analysis in the first run's.")
    ] = None,
    workers: Workers = None,
) -> None:
    """Compare the features of clients' networks: CKA by stage, t-SNE of one class; and costs."""
    from deploy.report.table import terminal
    from deploy.run import launch
    from deploy.study.analyse import analyse as run_analysis

    served = launch.default_workers() if workers is None else workers
    place = to or folders[0] / "analysis"
    written, numbers, results = run_analysis(folders, place, clients, images, label, served)
    out.print(*terminal(numbers, ruled=False))
    finish(written, runs=results)


COMMANDS = (noise, information, regions, samples, analyse)
