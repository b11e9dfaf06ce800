"""Python interface of ``import fedmosaic``: commands as functions, runs as objects.

An error has the line that the command line prints. Functions raise ``ValueError`` for a mistake,
before anything starts, and ``RuntimeError`` if a run cannot continue.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.console import Console

from common.extras import imported, missing
from common.files import read_json
from common.journal import Entry
from common.measures import ACCURACY
from common.settings.section import Value, dotted, kebab
from deploy import settings as experiments
from deploy.report import listing
from deploy.report import read as reading
from deploy.report.listing import Setting
from deploy.run.preflight import fresh, resumed

if TYPE_CHECKING:
    import pandas
    from torch import Tensor, nn

    from deploy.study.predictor import Predictor

__all__ = ["Run", "Setting", "compare", "load", "run", "settings", "sweep"]


@final
class Run:
    """Folder of a run: configuration, journal, results and model.

    Attributes are read from the folder at each access, so that a running run can be watched.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raise ``ValueError``, one line, if ``folder`` contains no run."""
        self.folder = Path(folder).expanduser().resolve()
        self._read()

    def _read(self) -> reading.Run:
        return reading.read(self.folder)

    @property
    def config(self) -> dict[str, object]:
        """Value of every setting in the run, by key, such as ``data.alpha``."""
        return dotted(self._read().config)

    @property
    def finished(self) -> bool:
        """Whether the run has completed all rounds or has reached its target."""
        return self._read().finished

    @property
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json``; empty until the run ends."""
        path = self.folder / "summary.json"
        summary: dict[str, Any] = read_json(path) if path.exists() else {}
        return summary

    @property
    def entries(self) -> list[Entry]:
        """Entries of the journal: the census (round 0), then every round."""
        return self._read().entries

    @property
    def accuracy(self) -> float | None:
        """Primary accuracy after the last round, in [0, 1]; None: not scored, or not of classes.

        It is that of the server's model on its test set, or with ``primary == "personal"`` that of
        the clients' models on their own test samples.
        """
        return self.score if self._read().measure is ACCURACY else None

    @property
    def score(self) -> float | None:
        """Primary score after the last round; None: not scored.

        It is the accuracy of classes, the macro AUC of labels, R² of numbers, and bits per byte of
        next tokens, where less is better.
        """
        return self._read().headline()["final"]

    @property
    def primary(self) -> str:
        """Score that counts for the run: ``global`` or ``personal``."""
        return self._read().primary

    @property
    def journal(self) -> pandas.DataFrame:
        """Table with a row for each round after the census.

        Times are in seconds, accuracies in [0, 1]. Of labels and numbers each measure has a
        column, such as ``rmse`` in the data's unit, and one with the prefix ``personal_``.

        Raises ``ValueError`` if pandas is not installed.
        """
        return _frame([_row(entry) for entry in self.entries if entry.round > 0], "round")

    @property
    def clients(self) -> pandas.DataFrame:
        """Table with each client's model, samples, and scores on its own test samples.

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
                name = run.measure.name
                row |= {name: score.own, f"{name}_global": score.shared}
                row |= {f"{name}_{model}": value for model, value in score.further.items()}
                row |= {n: value for n, value in score.measures.items() if ":" not in n}
                row |= {f"{n}_global": value for n, value in score.measures_global.items()}
            rows.append(row)
        return _frame(rows, "k")

    def model(self, *, client: int | None = None, best: bool = False) -> nn.Module:
        """Return the final model of the server, on the CPU and in evaluation mode.

        It maps samples [n, ...], normalised as in training, to logits [n, C]; ``predict`` takes raw
        samples. ``client``: number of the client whose model to return instead, the one with which
        it predicts. ``best``: after the best round (``score.keep-best``), for the server's alone.

        Raises ``ValueError``, one line, if the run has no such model.
        """
        return self._predictor(client, best).net

    def predict(
        self,
        x: object,
        *,
        client: int | None = None,
        best: bool = False,
        probabilities: bool = False,
    ) -> list[str] | Tensor:
        """Return what a model predicts for raw samples.

        Of classes the names [n], of labels the probabilities [n, L], and of numbers [n, D] in the
        unit of the training data; ``model.json`` in the run's folder names labels and targets.

        ``x``: images in bytes (n, H, W, C), (n, C, H, W) or (n, H, W), or Pillow images; signals
        (n, C, T); rows (n, F), or a data frame with the columns of the training; texts in a list,
        an array or a column. They are resized, normalised and cut as in training. ``client``,
        ``best``: as for ``model``. ``probabilities``: return those of all classes [n, C] instead,
        or of labels.

        Raises ``ValueError``, one line, for samples that differ from those of the training.
        """
        used = self._predictor(client, best)
        goal = used.card.goal
        if goal.every:
            raise ValueError("predict is for samples with one output; complete continues a text")
        outputs = used.logits(x)
        if probabilities:
            return goal.shares(outputs)
        predicted = goal.predicted(outputs)
        return [goal.outputs[c] for c in predicted.tolist()] if goal.one_each else predicted

    def complete(
        self,
        text: str,
        *,
        tokens: int = 200,
        temperature: float = 1.0,
        seed: int = 0,
        client: int | None = None,
        best: bool = False,
    ) -> str:
        """Return ``text`` with ``tokens`` more tokens, as a model of next tokens continues it.

        ``temperature``: of the probabilities from which each token is drawn; 0: the most probable
        one. ``seed``: of these draws. ``client``, ``best``: as for ``model``.

        Raises ``ValueError``, one line, for a run that learnt something else.
        """
        return self._predictor(client, best).complete(text, tokens, temperature, seed)

    def _predictor(self, client: int | None, best: bool) -> Predictor:
        """Return a model of the run. Raises as ``model``."""
        from deploy.study.predictor import Predictor

        return Predictor.of_run(self.folder, client, best=best)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the report of this run, by default ``report.html`` in its folder.

        Return the path. Raises ``ValueError``, one line, for a damaged journal.
        """
        reading.check_journals([self.folder])
        return _write_page([self.folder], out or self.folder / "report.html")

    def __repr__(self) -> str:
        run, score = self._read(), self.score
        scored = f"{run.measure.title} {run.text(score)}, " if score is not None else ""
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

    ``experiment``: a TOML file or the name of a bundled experiment; None: ``default``. ``out``:
    folder of the results; None: a new folder in ``runs``. ``resume``: folder of a run to resume
    instead. ``runtime``: loopback, ray or grpc. ``workers``: processes that serve clients on
    loopback; 0: this process serves them, None: one process for each core. ``warm_start``: fork
    client processes from one that has imported torch (grpc). ``ray_address``: HOST:PORT of a Ray
    cluster that serves the clients (ray). ``quiet``: show no progress. ``settings``: any key of
    ``fedmosaic.settings()``, tables as dictionaries: ``run(method="fedkf", rounds=20,
    data={"alpha": 0.1})``; a fleet may be a list.

    Raises ``ValueError``, one line, before anything starts; ``RuntimeError`` if the run stops.
    """
    import torch

    from deploy import user_modules
    from deploy.run.launch import launch

    experiments.check_runtime(runtime, workers)
    given = _flat(settings)
    if resume is not None:
        if experiment is not None or out is not None:
            raise ValueError(
                "resume takes the experiment from its folder: give no experiment or out"
            )
        folder = Path(resume).expanduser().resolve()
        saved, copies = folder / "config.toml", folder / user_modules.COPIES
        if saved.exists() and user_modules.hidden(copies, experiments.load(saved)):
            given |= {"runtime": runtime} if runtime else {}
            return _elsewhere(folder, given, workers, quiet)
        flat, folder = resumed(folder, runtime, given=given)
    else:
        file = experiments.DEFAULT if experiment is None else Path(experiment)
        config = experiments.read(file, given=given).resolve()
        flat, folder = fresh(config, runtime, None if out is None else Path(out))
    threads, console = torch.get_num_threads(), Console(quiet=quiet)
    try:
        launch(flat, folder, workers, console, warm_start, ray_address)
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from error
    finally:
        torch.set_num_threads(threads)  # the run has set its own number
    return Run(folder)


def _elsewhere(folder: Path, given: Mapping[str, Value], workers: int | None, quiet: bool) -> Run:
    """Resume a run in a new process, which does not import from the folder of this script.

    Raises as ``run``.
    """
    settings = [word for key, value in given.items() for word in ("-s", f"{key}={value}")]
    settings += [] if workers is None else ["--workers", str(workers)]
    program = [sys.executable, "-P", "-c", "import fedmosaic; fedmosaic.main()"]
    command = [*program, "run", "--resume", str(folder), *settings]
    out = subprocess.DEVNULL if quiet else None
    ended = subprocess.run(command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        line = ended.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise RuntimeError(line)
    return Run(folder)


def load(folder: str | Path) -> Run:
    """Return the run in a folder, finished or not.

    Raises ``ValueError``, one line, if the folder contains no run.
    """
    return Run(folder)


def compare(runs: Iterable[Run | str | Path], out: str | Path | None = None) -> pandas.DataFrame:
    """Return a table with a row for each run; also write a page that compares them to ``out``.

    The index is the run's name with the seed or settings that tell it from the others. Columns:
    ``folder``, ``method``, ``dataset``, ``seed``, ``rounds``, ``finished``, each label as
    ``label.KEY``; the primary accuracy ``final``, ``best`` and ``last10`` and whose it is,
    ``primary``; ``on_clients``, the mean on the clients' test samples (all in [0, 1]); ``bytes_up``
    and ``bytes_down`` of the whole run, ``seconds``, ``clock`` (seconds on the virtual clock),
    ``failures``; and each setting that differs.

    Raises ``ValueError``, one line, for no runs, a repeated run, a folder without a run, a damaged
    journal, or if pandas is not installed.
    """
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    found = reading.read_several(folders)
    reading.check_journals(folders)
    if out is not None:
        _write_page(folders, out)
    groups = imported("deploy.report.groups")
    differing = groups.differences([[run] for run in found])
    position = {run.path: i for i, run in enumerate(found)}
    rows = []
    for name, run in groups.named(groups.grouped(found)):
        row: dict[str, object] = {"run": name, "folder": run.path}
        row |= {key: run.setting(key) for key in ("method", "dataset", "seed")}
        row |= {"rounds": run.done, "finished": run.finished, "primary": run.primary}
        row |= run.headline() | {"on_clients": run.mean_on_clients()[1]}
        row |= {f"bytes_{way}": run.cost(way) for way in ("up", "down")}
        clock = run.over("clock")
        row |= {"seconds": run.seconds(), "clock": clock and clock.end}
        row |= {"failures": len(run.over("failures"))}
        row |= {f"label.{key}": value for key, value in run.labels.items()}
        others = {key: values[position[run.path]] for key, values in differing.items()}
        others.pop("labels", None)
        rows.append({**others, **row})
    return _frame(rows, "run")


def _write_page(folders: list[Path], out: str | Path) -> Path:
    page = Path(out).expanduser().resolve()
    imported("deploy.report.pages").write_report(folders, page)
    return page


def sweep(
    file: str | Path | Mapping[str, object], *, out: str | Path | None = None, jobs: int = 0
) -> pandas.DataFrame:
    """Try configurations of an experiment, and return a table with a row for each.

    ``file``: a sweep file, or a dictionary with the same keys, such as ``{"base": {"method":
    "fedavg", "data": {"validation": 0.2}}, "space": {"train.lr": [0.01, 0.1]}}``. ``out``: folder
    of the sweep, which goes on with what is missing there; None: ``runs/NAME``. ``jobs``: runs at a
    time; 0: one for each core.

    The columns are the settings of the space, the ``mean`` of the seeds on validation samples in
    the sweep's unit, half of its 95 % ``interval``, the number of ``seeds``, whether it is
    ``chosen``, and why it is ``unfinished``.

    Raises ``ValueError``, one line, before anything starts.
    """
    from deploy.run.launch import default_workers
    from deploy.study import sweep as sweeps

    source = dict(file) if isinstance(file, Mapping) else Path(file)
    spec = sweeps.read(source)
    path = None if isinstance(source, dict) else experiments.find(source)
    folder, stem = sweeps.target(path, Path(out) if out else None)
    found = sweeps.run(spec, folder, jobs or default_workers())
    sweeps.write(spec, found, folder, stem, path.parent if path else Path())
    rows = []
    for name, configuration in found.configurations.items():
        cell = found.filled.cell(name, sweeps.COLUMN)
        scored = {"mean": cell.mean, "interval": cell.interval, "seeds": len(cell.values)}
        state = {"chosen": name == found.best, "unfinished": found.unfinished.get(name, "")}
        rows.append({"configuration": name, **configuration, **scored, **state})
    return _frame(rows, "configuration")


def settings(method: str = "") -> dict[str, Setting]:
    """Return the default, the allowed values and the meaning of every setting, by key.

    ``method``: only the settings that this method reads, with the defaults resolved for it.

    Raises ``ValueError`` for a method that does not exist.
    """
    return {setting.key: setting for setting in listing.described(method)}


def _flat(settings: Mapping[Any, Any]) -> dict[str, Value]:
    """Convert keyword arguments to flat keys: ``dl_sh={"batch_size": 8}``: ``dl-sh.batch-size``."""
    flat = {kebab(key): value for key, value in dotted(settings).items()}
    for key, value in flat.items():
        if isinstance(value, Path):
            flat[key] = str(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            flat[key] = ",".join(map(str, value))
    return experiments.flatten(flat)


def _row(entry: Entry) -> dict[str, object]:
    """Return the numbers of a round by column name."""
    row: dict[str, object] = {"round": entry.round, "accuracy": entry.accuracy, "loss": entry.loss}
    row |= {name.replace(":", "_"): value for name, value in entry.measures.items()}
    row["primary_score"] = entry.primary_score
    if entry.personal:
        personal = entry.personal.model_dump(exclude={"measures", "pooled"}, exclude_none=True)
        personal |= entry.personal.measures
        row |= {f"personal_{name}": value for name, value in personal.items()}
    if entry.by_class:
        row |= entry.by_class.model_dump(exclude={"accuracy"}, exclude_none=True)
    row |= {f"accuracy_{name}": value for name, value in entry.accuracies.items()}
    row |= {f"accuracy_{bn}_bn": value for bn, value in entry.accuracy_bn.items()}
    if entry.privacy is None:  # otherwise withheld
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
