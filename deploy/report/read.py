"""Read a run's directory: config.toml, journal.jsonl and, after the run's end, summary.json.

Reading is tolerant: the run may be unfinished or killed, and its last line may be cut off.
``Run.notes`` lists what is missing. Only a directory without a journal, or with a journal of
another release, is rejected. Every text is cleaned, so that no name or reason controls a terminal.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, final

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from common.errors import invalid
from common.files import parse_json, parse_toml
from common.journal import (
    Arrivals,
    ByClass,
    ClientScore,
    Entry,
    JsonObject,
    Member,
    Primary,
    measure_of,
    members,
    newest,
    over,
    primary_course,
)
from common.measures import ACCURACY, Measure
from common.metrics import LAST, MANY, SHARES, fairness, over_rounds, quantiles
from deploy.report.table import Cell, Table, clean, number, percent
from server_app.storage.journal import read_lines

if TYPE_CHECKING:
    from common.objectives import Objective

T = TypeVar("T")
M = TypeVar("M", bound=JsonObject)
JOURNAL = "journal.jsonl"
RUNS = 5  #: most runs that a line names
FILES = (
    *(JOURNAL, "config.toml", "summary.json", "confusion.json", "predictions.json", "data.json"),
)
NAME, LONGEST = 40, 500  #: most characters of a name, and of any other text


Class = Annotated[int, Field(ge=0)]


@final
class Reached(JsonObject):
    """The first rounds whose primary score reaches ``target``: with one score, and with the mean of
    five."""

    target: float
    first: int | None = None
    mean5: int | None = None


@final
class TimeReached(JsonObject):
    """Seconds on the virtual clock until ``target`` is reached; None: never."""

    target: float
    seconds: float | None = None


@final
class Summary(JsonObject):
    """Fields of summary.json that are not in the journal or replace a missing config.toml."""

    status: str | None = None  #: completed or stopped
    error: str | None = None  #: why the run stopped
    method: str | None = None
    dataset: str | None = None
    runtime: str | None = None
    seed: int | None = None
    rounds: int | None = None
    rounds_to_target: Reached | None = None
    time_to_target: TimeReached | None = None
    weights_sha256: str | None = None
    versions: dict[str, str] = {}


@final
class Confusion(JsonObject):
    """Content of confusion.json: class, predicted class and samples of each pair that occurs."""

    round: int = Field(ge=0)
    counts: list[tuple[Class, Class, Annotated[int, Field(ge=1)]]]


@final
class Predictions(JsonObject):
    """Content of predictions.json: of at most 2,000 test samples of the server after a round.

    ``predicted``: probabilities of each label, or numbers; ``true``: the values, by sample.
    ``texts``: instead of both, beginnings of texts with the model's continuations.
    """

    round: int = Field(ge=0)
    predicted: list[list[FiniteFloat]] = []
    true: list[list[FiniteFloat]] = []
    texts: list[tuple[str, str]] = []

    @model_validator(mode="after")
    def _alike(self) -> Self:
        sizes = {(len(rows), len(row)) for rows in (self.predicted, self.true) for row in rows}
        if len(sizes) != 1 - bool(self.texts) or bool(self.true) == bool(self.texts):
            raise ValueError("predictions and true values differ in number")
        return self

    def shown(self, newest: Entry) -> bool:
        """Return whether they are of the scores of an entry."""
        return newest.primary == "global" and newest.round == self.round


@final
class DataRead(JsonObject):
    """Fields of data.json: what was read before training, in lines, and why scores can mislead."""

    rows: list[tuple[str, str]] = []
    warnings: list[str] = []


@final
@dataclass(frozen=True)
class Run:
    """The contents of one run's directory. ``entries`` are ordered by round, census first."""

    path: Path
    config: Mapping[str, object] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    summary: Summary | None = None
    notes: list[str] = field(default_factory=list)
    confusion: Confusion | None = None
    data: DataRead | None = None
    predictions: Predictions | None = None

    @property
    def rounds(self) -> int | None:
        """The configured number of rounds, if it is known."""
        rounds = self.config.get("rounds", self.summary and self.summary.rounds)
        return rounds if isinstance(rounds, int) and not isinstance(rounds, bool) else None

    @property
    def done(self) -> int:
        """The last round in the journal."""
        return max((e.round for e in self.entries), default=0)

    @property
    def reached(self) -> str:
        """The number of finished rounds in words: "2 of 5"."""
        return f"{self.done}" if self.rounds is None else f"{self.done} of {self.rounds}"

    @property
    def end(self) -> str:
        """Reason why the run ended before its last round, or an empty text."""
        return self.entries[-1].end if self.entries else ""

    @property
    def finished(self) -> bool:
        over = self.rounds is None or self.done >= self.rounds or self.end != ""
        return self.summary is not None and over

    @property
    def name(self) -> str:
        """The run's own name, else the method, else the name of the directory."""
        own = clean(self.config.get("name") or "", 60)
        return own or self.setting("method") or clean(self.path.name, 60)

    @property
    def labels(self) -> dict[str, str]:
        """The run's labels by key."""
        pairs = (label.partition("=") for label in clean(self.config.get("labels", "")).split(","))
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}

    def setting(self, name: str) -> str | None:
        """Return ``method``, ``dataset``, ``runtime`` or ``seed``, from the summary or config."""
        inner = self.table("data").get("name") if name == "dataset" else None
        value = getattr(self.summary, name, None)
        value = self.config.get(name, inner) if value is None else value
        return None if value is None else clean(value, 60)

    def table(self, name: str) -> dict[str, object]:
        """Return a table of the config; an empty one if it is missing."""
        table = self.config.get(name)
        return table if isinstance(table, dict) else {}

    @property
    def primary(self) -> Primary:
        """The score that counts for the run."""
        return self.entries[-1].primary if self.entries else "global"

    @cached_property
    def measure(self) -> Measure:
        """The measure of the scores; the accuracy before there is any."""
        return measure_of(self.entries)

    @property
    def objective(self) -> "type[Objective]":
        """What is learnt, by the measure of the scores."""
        from common.objectives import OBJECTIVES, Classes  # torch, which lists do without

        return next((o for o in OBJECTIVES.values() if o.primary is self.measure), Classes)

    def text(self, score: float | None, digits: int = 1) -> str:
        """Format a score: ``93.1 %`` of an accuracy, ``0.931`` of another measure."""
        return self.measure.text(score, digits)

    def accuracies(self) -> list[tuple[int, float]]:
        """Return (round, primary score) of every round with the primary score."""
        return [(t, a) for t, a in primary_course(self.entries) if math.isfinite(a)]

    def last_scored(self) -> Entry | None:
        """Return the newest round with the primary score."""
        return next((e for e in reversed(self.entries) if e.primary_score is not None), None)

    def best(self) -> tuple[int, float]:
        """Return the first (round, score) with the best primary score; needs a scored round."""
        course = self.accuracies()
        best = self.measure.best([score for _, score in course])
        return next(point for point in course if point[1] == best)

    def headline(self) -> dict[str, float | None]:
        """Return final, best and last-10-mean score so far; before round 1 the census's."""
        if trained := self._trained():
            return {**over_rounds(trained, self.measure.best)}
        return dict.fromkeys(("final", "best", "last10"))

    def last(self) -> int:
        """Return how many scores ``last10`` averages: ten, or all if there are fewer."""
        return min(LAST, len(self._trained()))

    def _trained(self) -> list[float]:
        return [a for t, a in self.accuracies() if t > 0] or [a for _, a in self.accuracies()]

    def cost(self, direction: str) -> float:
        """Return the bytes sent ``up`` or ``down`` over the whole run, census included."""
        sent: int = self.over("bytes").get(direction, 0)
        return sent

    def over(self, field: str) -> Any:
        """Return the value of a field of the journal over all rounds, as its mark ``Over`` says."""
        return over(self.entries, field)

    def newest(self, field: str) -> Any:
        """Return the newest value of a field that some entries leave empty; None if all do."""
        return newest(self.entries, field)

    @property
    def buffered(self) -> bool:
        """Whether the run has asynchronous rounds (``mode``)."""
        return self.config.get("mode") == "buffered" or self.over("buffer") is not None

    def arrivals(self) -> Arrivals | None:
        """Return the last asynchronous round with the staleness of all rounds; None without one."""
        last: Arrivals | None = self.over("buffer")
        ages = [age for e in self.entries if e.buffer for age in e.buffer.staleness]
        return last and last.model_copy(update={"staleness": ages})

    def seconds(self) -> float:
        """Return the duration of all rounds; NaN if the journal has no times, under [privacy]."""
        timed = not self.private or any(entry.seconds for entry in self.entries)
        return sum(total(entry) for entry in self.entries) if timed else math.nan

    def scores(self) -> list[tuple[Member, ClientScore]]:
        """Return every scored client's census entry and last scores, in order of k."""
        members = {member.k: member for member in self.members}
        scores = {score.k: score for entry in self.entries for score in entry.scores}
        return [(members.get(k, Member(k=k)), scores[k]) for k in sorted(scores)]

    @property
    def own_models(self) -> bool:
        """Whether clients scored own models that differ from the global one."""
        return any(s.own not in (None, s.shared) for _, s in self.scores())

    def on_clients(self) -> dict[str, tuple[list[float], list[int]]]:
        """Return the clients' scores and test samples, for each model that all of them scored.

        The clients' own models come first, if they have any, then the global one, then further
        ones by name.
        """
        scored = [(m, s) for m, s in self.scores() if (s.own, s.shared) != (None, None)]
        columns: dict[str, list[float | None]] = {}
        if self.own_models:
            columns["own models"] = [s.own for _, s in scored]
        columns[self._global()] = [s.shared for _, s in scored]
        for name in scored[0][1].further if scored else ():
            columns[name] = [s.further.get(name) for _, s in scored]
        sizes = [max(m.n_test or s.n or 0, 1) for m, s in scored]
        known = {name: [v for v in values if v is not None] for name, values in columns.items()}
        return {name: (v, sizes) for name, v in known.items() if v and len(v) == len(scored)}

    def mean_on_clients(self) -> tuple[str, float | None]:
        """Return "own models" or "global model", whichever clients scored, and the mean score.

        The mean is weighted by test samples (AMP): of accuracies it is that of all test samples.
        """
        name, scored = next(iter(self.on_clients().items()), ("", None))
        if scored is None:
            return "", None
        return name if name == "own models" else "global model", fairness(*scored)["amp"]

    def _global(self) -> str:
        """Return the name of the global model among the models that clients scored."""
        fairness = self.over("fairness")
        others = {"own", *(name for _, s in self.scores() for name in s.further)}
        names = fairness.models if fairness else ()
        return next((name for name in names if name not in others), "global")

    @property
    def private(self) -> bool:
        """Whether the journal omits failures, replies and bytes, because of [privacy]."""
        return self.over("privacy") is not None or self.table("privacy").get("mode", "off") != "off"

    def models(self) -> list[str]:
        """Return the architectures, in order of the first client with each."""
        members = self.members or [member for member, _ in self.scores()]
        return list(dict.fromkeys(member.model for member in members))


def total(entry: Entry) -> float:
    """Return the seconds of a round: its recorded total, else the sum of its phases."""
    phases = {n: s for n, s in entry.seconds.items() if n != "total" and math.isfinite(s)}
    return entry.seconds.get("total", sum(phases.values()))


def asked(entry: Entry) -> int:
    """Return how many clients were selected; in an asynchronous round, whose jobs ended in it."""
    ended = {*entry.replied, *(failure.k for failure in entry.failures)}
    return len(ended if entry.buffer else entry.selected)


def scalars(entry: Entry) -> dict[str, float]:
    """Return all named numbers beside scores and loss: method metrics, drift, then fairness."""
    numbers = entry.metrics | ({} if entry.drift is None else {"drift": entry.drift})
    if entry.fairness is not None:
        main = entry.fairness.main
        further = {f"{m} ": spread for m, spread in entry.fairness.models.items() if spread != main}
        for model, spread in {"": main, **further}.items():
            numbers |= {f"{model}{name}": v for name, v in spread.model_dump().items()}
    return numbers


def scored(value: float | None, score: ClientScore, measure: Measure = ACCURACY) -> Cell:
    """Return a client's score, and beside it how long before its round an older one is from."""
    rounds = "round" if score.age == 1 else "rounds"
    old = f"(measured {score.age} {rounds} before)" if score.age and value is not None else ""
    return Cell(measure.text(value), old)


def over_classes(by_class: ByClass, digits: int) -> str:
    """Return the means over classes in words."""
    named = {
        "macro F1": by_class.macro_f1,
        "macro AUC": by_class.macro_auc,
        "balanced accuracy": by_class.balanced_accuracy,
    }
    return ", ".join(f"{n} {percent(v, digits)}" for n, v in named.items() if v is not None)


def of_clients(run: Run, *, parameters: bool) -> Table:
    """Return a table of each scored client's samples, scores and, if asked, ``parameters``.

    For more than ``MANY`` clients the table has quantiles instead of a row for each client.
    """
    models, own = run.models(), run.own_models
    scores = [(m, s, s.own if own else None, s.shared) for m, s in run.scores()]
    if len(scores) > MANY:
        return _quantiles([(m.n, mine, shared) for m, _, mine, shared in scores], run)
    columns = ["parameters"] if parameters else []
    rows = list[list[str | Cell]]()
    for m, s, mine, shared in scores:
        k = Cell(str(s.k), dot=models.index(m.model) if m.model in models else 7)
        size = [number(m.parameters)] if parameters else []
        both = (scored(value, s, run.measure) for value in (mine, shared))
        rows.append([k, m.model, number(m.n), *size, *both])
    header = ("client", "model", "samples", *columns, *_models(run))
    return Table(header, rows, "llr" if parameters else "rlr")


def _models(run: Run) -> list[str]:
    """Return the headers of the columns of scores."""
    named = "" if run.measure is ACCURACY else f", {run.measure.title}"
    return [f"{model}{named}" for model in ("own model", "global model")]


def _quantiles(clients: Sequence[tuple[int, float | None, float | None]], run: Run) -> Table:
    """Return quantiles of samples, own and global score, separately for each column."""
    samples, *scores = (quantiles(column) or {} for column in zip(*clients, strict=True))
    rows = [
        (name, number(int(samples[name])), *(run.text(of.get(name)) for of in scores))
        for name in SHARES
    ]
    header = (f"of {number(len(clients))} clients", "samples", *_models(run))
    return Table(header, rows, "lr")


def read(path: Path) -> Run:
    """Read a run's directory.

    Raises ``ValueError``, one line, if ``path`` is no such directory or its journal is of another
    release.
    """
    if not path.is_dir():
        raise ValueError(
            f"{path}: not a directory; it should be the directory of a run{beside(path)}"
        )
    if not (path / JOURNAL).is_file():
        raise ValueError(f"{path}: not a run's directory; it has no journal.jsonl{beside(path)}")
    return _read(path, stamps(path))


def beside(path: Path) -> str:
    """Return the end of a line that names the newest runs beside the folder ``path``, and in it."""
    found = [*path.parent.glob(f"*/{JOURNAL}"), *path.glob(f"*/{JOURNAL}")]
    newest = sorted(found, key=lambda journal: journal.stat().st_mtime, reverse=True)[:RUNS]
    names = ", ".join(str(journal.parent) for journal in newest)
    return f"; runs near it: {names}" if names else ""


def read_several(dirs: Sequence[Path]) -> list[Run]:
    """Read the directories of several runs.

    Raises ``ValueError`` if there is none, or one that is given twice or has no run, and for runs
    with different measures, which do not compare.
    """
    if not dirs:
        raise ValueError("no directory given: a report needs at least one run's directory")
    folders = [directory.resolve() for directory in dirs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise ValueError(f"{dirs[i]}: given twice; compare different runs")
    runs = [read(folder) for folder in folders]
    measures = {run.measure.title: run.path for run in runs if run.accuracies()}
    if len(measures) > 1:
        each = "; ".join(f"{title} of {path}" for title, path in measures.items())
        raise ValueError(f"runs with different measures do not compare: {each}")
    return runs


def stamps(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and time of each file of the run in ``path``, to notice changes."""
    files = [path / name for name in FILES]
    stats = [file.stat() for file in files if file.is_file()]
    return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)


def check_journals(folders: Iterable[Path]) -> None:
    """Raise ``ValueError``, one line, for a damaged line; the last line may be cut off.

    A folder without a journal passes, because ``read`` rejects it.
    """
    for path in (folder / "journal.jsonl" for folder in folders):
        for line in read_lines(path) if path.is_file() else ():
            if line.why and not line.cut:
                raise ValueError(
                    f"{path}, line {line.number} is damaged: {line.why}; for the remedy run: "
                    f"fedmosaic verify {path.parent}"
                )


@lru_cache(maxsize=1)
def _read(path: Path, stamps: tuple[tuple[int, int, int], ...]) -> Run:
    """Read a run; cached while its files are unchanged, as a run's end reads it several times."""
    notes: list[str] = []
    entries = _entries(path / "journal.jsonl", notes)
    census = next((e for e in entries if e.round == 0), None)
    if census is None:
        notes.append("The journal has no census (round 0): the clients are unknown.")
    notes += dict.fromkeys(note for entry in entries for note in entry.notes)
    clients = members(entries) if census else []
    if not (path / "config.toml").is_file():
        notes.append("config.toml is missing: the settings are unknown.")
    config = _load(path / "config.toml", lambda text: _cleaned(parse_toml(text), LONGEST), notes)
    summary = _load(path / "summary.json", _object(Summary), notes)
    confusion = _load(path / "confusion.json", _object(Confusion), notes)
    classes = census.classes if census else []
    data = _load(path / "data.json", _object(DataRead), notes)
    predictions = _load(path / "predictions.json", _object(Predictions), notes)
    files = confusion, data, predictions
    run = Run(path, config or {}, entries, clients, classes, summary, notes, *files)
    if not run.finished:
        why = "" if run.summary is not None else " and there is no summary.json yet"
        notes.insert(0, f"Unfinished: the journal ends at round {run.reached}{why}.")
    return run


def _entries(journal: Path, notes: list[str]) -> list[Entry]:
    """Return the journal's rounds; the last entry of a round written twice (by a resumed run)."""
    by_round: dict[int, Entry] = {}
    for line in read_lines(journal):
        place = f"journal.jsonl, line {line.number}"
        if line.entry:
            fields = _cleaned(line.entry.model_dump(exclude_unset=True), NAME)
            by_round[line.entry.round] = Entry.model_validate(fields)
            notes += [f"{place} is not as it was written: {line.why}."] * bool(line.why)
        elif line.raw.strip():
            damage = "cut off" if line.cut else "unreadable"
            notes.append(f"{place} is {damage}: left out.")
    return [by_round[t] for t in sorted(by_round)]


def _load(path: Path, parse: Callable[[str], T], notes: list[str]) -> T | None:
    """Return the content of a file; None without the file, or with a note if it is invalid."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except ValidationError as error:
        notes.append(f"{path.name} is no {path.stem}: {clean(invalid(error))}; left out.")
    except ValueError as error:  # another format, or not UTF-8
        notes.append(f"{path.name} is not {path.suffix[1:].upper()}: {clean(error)}")
    return None


def _object(kind: type[M]) -> Callable[[str], M]:
    return lambda text: kind.model_validate(_cleaned(parse_json(text), LONGEST))


def _cleaned(value: Any, limit: int) -> Any:
    """Return ``value`` with every text and key on one printable line of at most ``limit``
    characters; reasons and notes may be longer."""
    if isinstance(value, dict):
        most = {"reason": LONGEST, "notes": LONGEST}
        return {_cleaned(k, limit): _cleaned(v, most.get(k, limit)) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, limit) for item in value]
    return _clean(value, limit) if isinstance(value, str) else value


_clean = lru_cache(maxsize=1000)(clean)
"""Cached, because many clients share the same few keys and model names."""
