"""Read a run's directory: config.toml, journal.jsonl and, after the run's end, summary.json.

Reading is tolerant: the run may be unfinished or killed, and its last line may be cut off.
``Run.notes`` lists what is missing. Only a directory without a journal, or with a journal of
another release, is rejected. Every text is cleaned, so that no name or reason controls a terminal.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, final

from pydantic import Field, ValidationError

from common.errors import invalid
from common.journal import (
    ClientScore,
    Entry,
    Failure,
    Member,
    Part,
    PeakMemory,
    Primary,
    Privacy,
    members,
    read_lines,
)
from common.metrics import LAST, MANY, SHARES, fairness, over_rounds, quantiles
from deploy.report.table import Cell, Table, clean, number, percent

JOURNAL = "journal.jsonl"
FILES = (JOURNAL, "config.toml", "summary.json", "confusion.json")
NAME, LONGEST = 40, 500  #: most characters of a name, and of any other text


Class = Annotated[int, Field(ge=0)]
P = TypeVar("P", bound=Part)


@final
class Reached(Part):
    """The first rounds that reach the accuracy ``target``, in [0, 1]: with one score, and with the
    mean of five."""

    target: float
    first: int | None = None
    mean5: int | None = None


@final
class Summary(Part):
    """Fields of summary.json that are not in the journal or replace a missing config.toml."""

    status: str | None = None  #: completed or stopped
    error: str | None = None  #: why the run stopped
    method: str | None = None
    dataset: str | None = None
    runtime: str | None = None
    seed: int | None = None
    rounds: int | None = None
    rounds_to_target: Reached | None = None
    weights_sha256: str | None = None
    versions: dict[str, str] = {}


@final
class Confusion(Part):
    """Content of confusion.json: class, predicted class and samples of each pair that occurs."""

    round: int = Field(ge=0)
    counts: list[tuple[Class, Class, Annotated[int, Field(ge=1)]]]


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
        pairs = (part.partition("=") for part in clean(self.config.get("labels", "")).split(","))
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

    def accuracies(self) -> list[tuple[int, float]]:
        """Return (round, primary accuracy) of every round with the primary score."""
        scored = ((e.round, e.primary_accuracy) for e in self.entries)
        return [(t, a) for t, a in scored if a is not None and math.isfinite(a)]

    def best(self) -> tuple[int, float]:
        """Return the first (round, accuracy) with the best accuracy; needs a scored round."""
        return max(self.accuracies(), key=lambda point: point[1])

    def headline(self) -> dict[str, float | None]:
        """Return final, best and last-10-mean accuracy so far; before round 1 the census's."""
        if not (trained := self._trained()):
            return {"final": None, "best": None, "last10": None}
        statistics = over_rounds(trained)
        return {name: statistics[name] for name in ("final", "best", "last10")}

    def last(self) -> int:
        """Return how many accuracies ``last10`` averages: ten, or all if there are fewer."""
        return min(LAST, len(self._trained()))

    def _trained(self) -> list[float]:
        return [a for t, a in self.accuracies() if t > 0] or [a for _, a in self.accuracies()]

    def cost(self, direction: str) -> float:
        """Return the bytes sent ``up`` or ``down`` over the whole run, census included."""
        return sum(e.bytes.get(direction, 0) for e in self.entries)

    def flops(self, side: str) -> int:
        """Return the operations of training; 0 if not counted.

        ``side``: ``clients``, ``server``, or ``finetune`` for fine-tuning before scores.
        """
        return sum(e.flops.get(side, 0) for e in self.entries)

    def memory(self) -> PeakMemory:
        """Return the peak bytes of tensors over all rounds; empty if not measured."""
        return PeakMemory.most([e.memory for e in self.entries if e.memory])

    def seconds(self) -> float:
        """Return the seconds of all rounds."""
        return sum(total(e) for e in self.entries)

    def scores(self) -> list[tuple[Member, ClientScore]]:
        """Return every scored client's census entry and last accuracies, in order of k."""
        members = {member.k: member for member in self.members}
        scores = {score.k: score for entry in self.entries for score in entry.scores}
        return [(members.get(k, Member(k=k)), scores[k]) for k in sorted(scores)]

    @property
    def own_models(self) -> bool:
        """Whether clients scored own models that differ from the global one."""
        pairs = [
            (s.accuracy, s.accuracy_global) for _, s in self.scores() if s.accuracy is not None
        ]
        return any(own != shared for own, shared in pairs)

    def on_clients(self) -> dict[str, tuple[list[float], list[int]]]:
        """Return the clients' accuracies and test samples, for each model that all of them scored.

        The clients' own models come first, if they have any, then the global one, then further
        ones by name.
        """
        scored = [
            (m, s) for m, s in self.scores() if (s.accuracy, s.accuracy_global) != (None, None)
        ]
        columns: dict[str, list[float | None]] = {}
        if self.own_models:
            columns["own models"] = [s.accuracy for _, s in scored]
        columns[self._global()] = [s.accuracy_global for _, s in scored]
        for name in scored[0][1].accuracies if scored else ():
            columns[name] = [s.accuracies.get(name) for _, s in scored]
        sizes = [max(m.n_test or s.n or 0, 1) for m, s in scored]
        known = {name: [v for v in values if v is not None] for name, values in columns.items()}
        return {name: (v, sizes) for name, v in known.items() if v and len(v) == len(scored)}

    def mean_on_clients(self) -> tuple[str, float | None]:
        """Return "own models" or "global model", whichever clients scored, and the mean accuracy.

        The mean is weighted by test samples (AMP), so it is the accuracy on all test samples.
        """
        name, scored = next(iter(self.on_clients().items()), ("", None))
        if scored is None:
            return "", None
        return name if name == "own models" else "global model", fairness(*scored)["amp"]

    def _global(self) -> str:
        """Return the name of the global model among the models that clients scored."""
        fairness = self.last_of("fairness")
        others = {"own", *(name for _, s in self.scores() for name in s.accuracies)}
        names = fairness.models if fairness else ()
        return next((name for name in names if name not in others), "global")

    def spent(self) -> Privacy | None:
        """Return (ε, δ) after the last round; None without differential privacy."""
        return self.entries[-1].privacy if self.entries else None

    @property
    def private(self) -> bool:
        """Whether the journal omits failures, replies and bytes, because of [privacy]."""
        return self.spent() is not None or self.table("privacy").get("mode", "off") != "off"

    def last_of(self, field: str) -> Any:
        """Return the newest value of a field that some entries leave empty; None if all do."""
        return next((v for e in reversed(self.entries) if (v := getattr(e, field))), None)

    def failures(self) -> list[Failure]:
        """Return every failure, in order of the round."""
        return [failure for entry in self.entries for failure in entry.failures]

    def models(self) -> list[str]:
        """Return the architectures, in order of the first client with each."""
        members = self.members or [member for member, _ in self.scores()]
        return list(dict.fromkeys(member.model for member in members))


def total(entry: Entry) -> float:
    """Return the seconds of a round: its recorded total, else the sum of its phases."""
    phases = {n: s for n, s in entry.seconds.items() if n != "total" and math.isfinite(s)}
    return entry.seconds.get("total", sum(phases.values()))


def scalars(entry: Entry) -> dict[str, float]:
    """Return all named numbers beside accuracy and loss: method metrics, drift, then fairness."""
    numbers = entry.metrics | ({} if entry.drift is None else {"drift": entry.drift})
    if entry.fairness is not None:
        main = entry.fairness.main
        further = {m: spread for m, spread in entry.fairness.models.items() if spread != main}
        numbers |= main.model_dump()
        for model, spread in further.items():
            numbers |= {f"{model} {name}": v for name, v in spread.model_dump().items()}
    return numbers


def of_clients(run: Run, *, parameters: bool) -> Table:
    """Return a table of each scored client's samples, accuracies and, if asked, ``parameters``.

    For more than ``MANY`` clients the table has quantiles instead of a row for each client.
    """
    scores, own, models = run.scores(), run.own_models, run.models()
    if len(scores) > MANY:
        return _quantiles(run)
    columns = ["parameters"] if parameters else []
    rows = list[list[str | Cell]]()
    for m, s in scores:
        k = Cell(str(s.k), dot=models.index(m.model) if m.model in models else 7)
        size = [number(m.parameters)] if parameters else []
        shares = percent(s.accuracy if own else None), percent(s.accuracy_global)
        rows.append([k, m.model, number(m.n), *size, *shares])
    header = ("client", "model", "samples", *columns, "own model", "global model")
    return Table(header, rows, "llr" if parameters else "rlr")


def _quantiles(run: Run) -> Table:
    """Return quantiles over the scored clients, separately for each column."""
    scores, own = run.scores(), run.own_models
    samples = quantiles(member.n for member, _ in scores) or {}
    own_model = quantiles(score.accuracy if own else None for _, score in scores) or {}
    shared = quantiles(score.accuracy_global for _, score in scores) or {}
    rows = [
        (name, number(int(samples[name])), percent(own_model.get(name)), percent(shared.get(name)))
        for name in SHARES
    ]
    header = (f"of {number(len(scores))} clients", "samples", "own model", "global model")
    return Table(header, rows, "lr")


def read(path: Path) -> Run:
    """Read a run's directory.

    Raises ``ValueError``, one line, if ``path`` is no such directory or its journal is of another
    release.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: not a directory; it should be the directory of a run")
    if not (path / JOURNAL).is_file():
        raise ValueError(f"{path}: not a run's directory; it has no journal.jsonl")
    return _read(path, stamps(path))


def read_several(dirs: Sequence[Path]) -> list[Run]:
    """Read the directories of several runs.

    Raises ``ValueError`` if there is none, or one that is given twice or has no run.
    """
    if not dirs:
        raise ValueError("no directory given: a report needs at least one run's directory")
    folders = [directory.resolve() for directory in dirs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise ValueError(f"{dirs[i]}: given twice; compare different runs")
    return [read(folder) for folder in folders]


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
    config = _config(path / "config.toml", notes)
    summary = _part(path / "summary.json", Summary, notes)
    confusion = _part(path / "confusion.json", Confusion, notes)
    classes = census.classes if census else []
    run = Run(path, config, entries, clients, classes, summary, notes, confusion)
    if not run.finished:
        why = "" if run.summary is not None else " and there is no summary.json yet"
        notes.insert(0, f"Unfinished: the journal ends at round {run.reached}{why}.")
    return run


def dotted(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested tables: ``{"data": {"alpha": 0.5}}`` -> ``{"data.alpha": 0.5}``."""
    out: dict[str, object] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        out |= dotted(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return out


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


def _config(path: Path, notes: list[str]) -> Mapping[str, object]:
    try:
        config: dict[str, object]
        config = _cleaned(tomllib.loads(path.read_text(encoding="utf-8")), LONGEST)
        return config
    except FileNotFoundError:
        notes.append("config.toml is missing: the settings are unknown.")
    except ValueError as error:  # not TOML, or not UTF-8
        notes.append(f"config.toml is not TOML: {clean(error)}")
    return {}


def _part(path: Path, kind: type[P], notes: list[str]) -> P | None:
    """Return the content of a JSON file as a ``kind``; None if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return kind.model_validate(_cleaned(content, LONGEST))
    except FileNotFoundError:
        pass
    except ValidationError as error:
        notes.append(f"{path.name} is no {path.stem}: {clean(invalid(error))}; left out.")
    except ValueError as error:
        notes.append(f"{path.name} is not JSON: {clean(error)}")
    return None


def _cleaned(value: Any, limit: int) -> Any:
    """Return ``value`` with every text and key on one printable line of at most ``limit``
    characters; reasons and notes may be longer."""
    if isinstance(value, dict):
        most = {"reason": LONGEST, "notes": LONGEST}
        return {_cleaned(k, limit): _cleaned(v, most.get(k, limit)) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, limit) for part in value]
    return _clean(value, limit) if isinstance(value, str) else value


_clean = lru_cache(maxsize=1000)(clean)
"""Cached, because many clients share the same few keys and model names."""
