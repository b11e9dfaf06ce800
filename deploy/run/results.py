"""What is shown of a run that has ended: its clients, its result, its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from common.extras import EXTRAS
from common.section import Value
from deploy.report.read import read
from deploy.report.text import clean
from deploy.run.launch import summary_since
from deploy.run.progress import show_summary
from server_app.keep.summary import place
from server_app.track import sink


def show(folder: Path, track: str, console: Console) -> dict[str, object]:
    """Write the run's report, add it to the trackers of ``track``, print clients and result.

    The same as data: ``folder``, ``report`` (None where what draws it is not installed) and what
    ``summary.json`` holds.
    """
    page, warnings = _report(folder), list[str]()
    try:
        if page is not None:
            sink.add_file(folder, track, page)
    except ValueError as error:  # the server's machine has the tracker, this one has not
        warnings.append(f"the report is not added: {error}")
    show_summary(read(folder), console)
    for line in (*sink.failures(folder, track), *warnings):
        console.print(clean(line, 400), style="yellow", markup=False, soft_wrap=True)
    where = page or "none; matplotlib is not installed here: pip install 'fedmosaic[report]'"
    console.print(f"report: {where}", markup=False, highlight=False, soft_wrap=True)
    return {"folder": folder, "report": page, **(summary_since(folder, 0.0) or {})}


def _report(folder: Path) -> Path | None:
    try:
        from deploy.report.pages import write_report
    except ModuleNotFoundError as error:
        if EXTRAS.get(str(error.name)) != "report":
            raise
        return None
    write_report([folder], folder / "report.html")
    return folder / "report.html"


def show_if_here(flat: Mapping[str, Value], started: float, console: Console) -> dict[str, object]:
    """The same for a run whose server may have been another machine: one line if it was.

    ``flat``: its run config; ``started``: seconds since the epoch, before it began.
    """
    out, experiment = str(flat["out"]), str(flat["experiment"])
    folder, why = place(out, experiment), "on the server's machine"
    try:
        if summary_since(folder, started) is not None:
            return show(folder, str(flat["track"]), console)
    except OSError as error:
        why = f"but {error.filename or folder} cannot be used here: {error.strerror}"
    where = out or f"~/{folder.relative_to(Path.home())}"
    console.print(
        f"the results are in {where}, {why}; there: fedmosaic report {where}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return {"folder": where}
