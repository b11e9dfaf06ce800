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
    """Write a figure and say where."""
    figure.savefig(picture, dpi=150)
    plain(f"picture: {picture.resolve()}")


def noise(
    experiment: Experiment = None,
    settings: Settings = None,
    to: Annotated[Path, place("The picture.")] = Path("noise.png"),
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
    answer({"seconds": [asdict(each) for each in times], "picture": to.resolve()})


def information(
    experiment: Experiment = Path("noise_information_small"),
    settings: Settings = None,
    repeats: Annotated[int, typer.Option("--seeds", min=1, help="Seeds 1 to this one.")] = 5,
    to: Annotated[Path, place("Folder of what is written.")] = Path("information"),
) -> None:
    """Measure how much noise tells of a teacher, and what a student learns on it."""
    from deploy.report.table import terminal
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    known = study.load_found(flat, to)
    if known:
        plain(f"{len(known)} teachings are recorded in {to / study.FILE}")

    def tell(one: study.Measurement) -> None:
        known.append(one)
        study.keep_found(known, flat, to)
        plain(
            f"seed {one.seed}, {one.model} ({one.teacher:.1%}), {one.kind}, {one.bn} statistics: "
            f"{one.information:.3f} nats, student {one.student:.1%}"
        )

    with interruptible("the same command"):
        found = study.study(flat, range(1, repeats + 1), tuple(known), tell)
    out.print(*terminal(study.table(found), ruled=False))
    written = study.write(found, to)
    told = [asdict(one) for one in found]
    finish(written, found=told, correlations=study.correlations(found))


def regions(
    folder: Annotated[Path, typer.Argument(help="A finished run on points in the plane.")],
    to: Annotated[Path | None, place("The picture; default: regions.png there.")] = None,
) -> None:
    """Draw the decision regions of a run's clients and server, before and after."""
    from deploy.study.pictures import regions as draw

    picture = to or folder / "regions.png"
    save(draw(folder), picture)
    answer({"picture": picture.resolve()})


def samples(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run of fedkf or dafl.")],
    images: Annotated[int, typer.Option(min=1, help="Generated images in all.")] = 2000,
    to: Annotated[Path | None, place("The picture; default: there.")] = None,
) -> None:
    """Draw what a run's generators imagine: average images by class, under the real ones."""
    from deploy.study.pictures import samples as write

    picture = (to or folder / "samples.png").resolve()
    counts = write(folder.resolve(), images, picture).counts.tolist()
    out.print(f"images by class: {counts}")
    plain(f"samples: {picture}")
    answer({"images_by_class": counts, "picture": picture})


def analyse(
    folders: Folders,
    clients: Annotated[int, typer.Option(help="The first so many clients.")] = 10,
    images: Annotated[int, typer.Option(help="The first so many test images.")] = 500,
    label: Annotated[int, typer.Option("--class", help="The class of the t-SNE.")] = 0,
    to: Annotated[Path | None, place("Folder; default: analysis in the first run's.")] = None,
    workers: Workers = None,
) -> None:
    """Compare how clients' networks see: CKA by stage, t-SNE of one class, overheads."""
    from deploy.report.table import terminal
    from deploy.run import launch
    from deploy.study.analyse import analyse as run_analysis

    served = launch.default_workers() if workers is None else workers
    place = to or folders[0] / "analysis"
    written, numbers, found = run_analysis(folders, place, clients, images, label, served)
    out.print(*terminal(numbers, ruled=False))
    finish(written, runs=found)


COMMANDS = (noise, information, regions, samples, analyse)
