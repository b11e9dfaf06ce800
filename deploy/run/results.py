"""What is shown of a run that has ended: its clients, its result, its report."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from common.extras import missing
from common.section import Value
from deploy.report.read import read
from deploy.report.text import clean
from deploy.run.launch import summary_since
from deploy.run.progress import say, show_summary
from server_app.keep.summary import place
from server_app.track import sink


def show(folder: Path, console: Console) -> dict[str, object]:
    """Print the run's clients and result, and write its report if what draws it is installed.

    The same as data: ``folder``, ``report`` (None: not written) and what ``summary.json`` holds.
    """
    show_summary(read(folder), console)
    page: Path | None = folder / "report.html"
    try:
        report([folder], folder / "report.html", console)
    except ModuleNotFoundError as error:
        say(console, f"no report: {missing(error)}")
        page = None
    return {"folder": folder, "report": page, **(summary_since(folder, 0.0) or {})}


def report(folders: list[Path], page: Path, console: Console) -> None:
    """Write a page and say where; of a single run, its trackers get it too.

    Raises ``ValueError`` for what is no run's folder, ``ModuleNotFoundError`` without the extra
    ``report``.
    """
    from deploy.report.pages import write_report

    write_report(folders, page)
    if len(folders) == 1:
        for line in _added(folders[0], page.resolve()):
            say(console, clean(line, 400), "yellow")
    say(console, f"report: {page.resolve()}")


def _added(folder: Path, page: Path) -> list[str]:
    """Hand the page to the run's trackers; a line for each that failed, then or earlier."""
    track = str(read(folder).config.get("track", ""))
    try:
        sink.add_file(folder, track, page)
    except ValueError as error:  # the server's machine has the tracker, this one has not
        return [f"the report is not added: {error}"]
    return sink.failures(folder, track)


def show_if_here(flat: Mapping[str, Value], started: float, console: Console) -> dict[str, object]:
    """The same for a run whose server may have been another machine: one line if it was.

    ``flat``: its run config; ``started``: seconds since the epoch, before it began.
    """
    out, experiment = str(flat["out"]), str(flat["experiment"])
    folder, why = place(out, experiment), "on the server's machine"
    try:
        if summary_since(folder, started) is not None:
            return show(folder, console)
    except OSError as error:
        why = f"but {error.filename or folder} cannot be used here: {error.strerror}"
    where = out or f"~/{folder.relative_to(Path.home())}"
    say(console, f"the results are in {where}, {why}; there: fedmosaic report {where}")
    return {"folder": where}
