"""What ``import fedmosaic`` offers: the commands as functions, a run as an object.

They raise what the command line prints: ``ValueError`` for a mistake, before anything starts;
``RuntimeError`` if a run could not go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.console import Console

from common.journal import Entry
from common.settings.extras import imported, missing
from common.settings.section import Value, kebab
from deploy.report import listing
from deploy.report import read as reading
from deploy.report.listing import Setting
from deploy.report.table import percent
from deploy.run import settings as given
from deploy.run.preflight import fresh, resumed

if TYPE_CHECKING:
    import pandas
    from torch import nn

__all__ = ["Run", "Setting", "compare", "load", "run", "settings"]


@final
class Run:
    """A run's folder: configuration, journal, results, model.

    What is read is what the folder holds at that moment, so a run that goes on can be watched.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ``ValueError``, one line, if ``folder`` holds no run."""
        self.folder = Path(folder).expanduser().resolve()
        self._read()

    def _read(self) -> reading.Run:
        return reading.read(self.folder)

    @property
    def config(self) -> dict[str, object]:
        """Every setting by its key, such as ``data.alpha``, as the run had it."""
        return reading.flat(self._read().config)

    @property
    def finished(self) -> bool:
        """Whether all rounds that were asked for are done."""
        return self._read().finished

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``; empty while the run goes on."""
        path = self.folder / "summary.json"
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return found

    @property
    def entries(self) -> list[Entry]:
        """The journal, typed: the census (round 0), then every round."""
        return self._read().entries

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the server's model after the last round, in [0, 1]; None: not scored."""
        return self._read().headline()["final"]

    @property
    def journal(self) -> pandas.DataFrame:
        """A row for each round, the census left out; times in seconds, accuracies in [0, 1].

        Raises ``ValueError`` if pandas is not installed.
        """
        return _frame([_row(entry) for entry in self.entries if entry.round > 0], "round")

    @property
    def clients(self) -> pandas.DataFrame:
        """A row for each client: its model, samples, and accuracies on its own test samples.

        Raises ``ValueError`` if pandas is not installed.
        """
        run = self._read()
        scores = {score.k: score for _, score in run.scores()}
        rows = []
        for member in run.members:
            row: dict[str, object] = {**member.model_dump(), "classes": len(member.classes)}
            del row["counts"]
            if member.k in scores:
                score = scores[member.k]
                row |= {"accuracy": score.accuracy, "accuracy_global": score.accuracy_global}
                row |= {f"accuracy_{name}": value for name, value in score.accuracies.items()}
            rows.append(row)
        return _frame(rows, "k")

    def model(self) -> nn.Module:
        """The server's model as the run left it, on the CPU and in evaluation mode.

        It takes images [n, C, H, W] that are normalised as in training and gives logits [n, C].

        Raises ``ValueError`` if the run has left none.
        """
        from deploy.study.finished import finished

        of = finished(self.folder)
        return of.server_model(of.task(of.dataset()))

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about this run, by default ``report.html`` in its folder."""
        return compare([self], out or self.folder / "report.html")

    def __repr__(self) -> str:
        run = self._read()
        scored = f"accuracy {percent(self.accuracy)}, " if self.accuracy is not None else ""
        return f"<Run {run.name}: {scored}round {run.reached}, {self.folder}>"


def run(
    experiment: str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    runtime: str = "",
    workers: int | None = None,
    warm_start: bool | None = None,
    ray_address: str = "",
    quiet: bool = False,
    **settings: Value | Sequence[str] | Mapping[Any, Any],
) -> Run:
    """Run an experiment on this machine to its end.

    ``experiment``: a TOML file or the name of one of the project's; None: its ``default``.
    ``out``: folder of the results; default: a new one below ``runs``. ``resume``: go on with the
    run in this folder instead. ``runtime``: loopback, ray or grpc. ``workers``: processes that
    serve clients on loopback; 0: none beside this one, None: as many as there are cores.
    ``ray_address``: HOST:PORT of a Ray cluster that serves them, with the ray runtime. ``quiet``:
    show no progress. ``settings``: any key of ``fedmosaic.settings()``, tables as dictionaries:
    ``run(method="fedkf", rounds=20, data={"alpha": 0.1})``; a fleet may be a list.

    Raises ``ValueError``, one line, before anything starts; ``RuntimeError`` if the run stopped.
    """
    import torch

    from deploy.run.launch import launch

    given.check_runtime(runtime, workers)
    overrides = given.numbers(_flat(settings))
    if resume is not None:
        if experiment is not None or out is not None:
            raise ValueError("resume goes on with a folder's own experiment: give no other")
        flat, folder = resumed(Path(resume), overrides, runtime)
    else:
        file = given.DEFAULT if experiment is None else Path(experiment)
        whole = given.resolve(file) | overrides
        flat, folder = fresh(whole, runtime, None if out is None else Path(out))
    threads, console = torch.get_num_threads(), Console(quiet=quiet)
    try:
        launch(flat, folder, workers, console, warm_start, ray_address)
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from error
    finally:
        torch.set_num_threads(threads)  # the run's own number was for the run
    return Run(folder)


def load(folder: str | Path) -> Run:
    """The run in a folder, finished or not.

    Raises ``ValueError``, one line, if it holds none.
    """
    return Run(folder)


def compare(runs: Iterable[Run | str | Path], out: str | Path = "report.html") -> Path:
    """Write one page about several runs beside each other; where it is.

    Raises ``ValueError``, one line: no run, the same twice, a folder without one.
    """
    write_report = imported("deploy.report.pages").write_report
    page = Path(out).expanduser().resolve()
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    reading.check_journals(folders)
    write_report(folders, page)
    return page


def settings(method: str = "") -> dict[str, Setting]:
    """Every setting by its key: default, what is allowed, meaning.

    ``method``: those that this method reads, their defaults resolved for it.

    Raises ``ValueError`` for a method that does not exist.
    """
    return {setting.key: setting for setting in listing.described(method)}


def _flat(settings: Mapping[Any, Any], prefix: str = "") -> dict[str, Value]:
    """Keyword arguments as flat keys: ``dl_sh={"batch_size": 8}`` is ``dl-sh.batch-size``."""
    flat: dict[str, Value] = {}
    for name, value in settings.items():
        key = prefix + kebab(str(name))
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{key}.")
        elif isinstance(value, Path):
            flat[key] = str(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            flat[key] = ",".join(map(str, value))
        else:
            flat |= given.flatten({key: value})
    return flat


def _row(entry: Entry) -> dict[str, object]:
    """A round's numbers, each under a name of its own."""
    row: dict[str, object] = {"round": entry.round, "accuracy": entry.accuracy, "loss": entry.loss}
    row |= {f"accuracy_{name}": value for name, value in entry.accuracies.items()}
    row |= {f"accuracy_{bn}_bn": value for bn, value in entry.accuracy_bn.items()}
    row |= {"selected": len(entry.selected), "replied": len(entry.replied)}
    row["failures"] = len(entry.failures)
    if entry.fairness:
        row |= entry.fairness.main.model_dump()
    row |= entry.metrics
    row |= {f"bytes_{name}": value for name, value in entry.bytes.items()}
    row |= {f"seconds_{name}": value for name, value in entry.seconds.items()}
    return row


def _frame(rows: list[dict[str, object]], index: str) -> pandas.DataFrame:
    frame: pandas.DataFrame = imported("pandas").DataFrame(rows)
    return frame.set_index(index) if rows else frame
