"""A run's directory, read back: config.toml, journal.jsonl and, once it is over, summary.json.

Reading is tolerant: a run that goes on, was killed, or lost half of its last line still reads, and
``Run.notes`` says what was missing. Only a directory without a journal, or with one that another
release wrote, is refused. Every text is cleaned here: no name or reason can steer a terminal.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from pydantic import ValidationError

from common.errors import invalid
from common.journal import (
    ClientScore,
    Entry,
    Failure,
    Member,
    Part,
    PeakMemory,
    Privacy,
    read_lines,
)
from common.metrics import LAST, MANY, SHARES, fairness, over_rounds, quantiles
from deploy.report.table import Cell, Table, clean, number, percent

NAME, LONGEST = 40, 500  #: characters of a name, and of any other text


@final
class Reached(Part):
    """The rounds in which an accuracy of ``target``, in [0, 1], was reached: by one score, by the
    mean of five."""

    target: float
    first: int | None = None
    mean5: int | None = None


@final
class Summary(Part):
    """Fields of summary.json that the journal lacks, or that a run's folder may have lost."""

    method: str | None = None
    dataset: str | None = None
    runtime: str | None = None
    seed: int | None = None
    rounds: int | None = None
    rounds_to_target: Reached | None = None
    weights_sha256: str | None = None
    versions: dict[str, str] = {}


@final
@dataclass(frozen=True)
class Run:
    """What one directory says about its run. ``entries`` is in order of the round, census first."""

    path: Path
    config: Mapping[str, object] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    summary: Summary | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int | None:
        """How many rounds were asked for, if that is known."""
        asked = self.config.get("rounds", self.summary and self.summary.rounds)
        return asked if isinstance(asked, int) and not isinstance(asked, bool) else None

    @property
    def done(self) -> int:
        """The last round the journal holds."""
        return max((e.round for e in self.entries), default=0)

    @property
    def reached(self) -> str:
        """The same in words: "2 of 5"."""
        return f"{self.done}" if self.rounds is None else f"{self.done} of {self.rounds}"

    @property
    def target(self) -> float | None:
        """The accuracy with which the run ended, in its last round or before, if it did."""
        return self.entries[-1].reached if self.entries else None

    @property
    def finished(self) -> bool:
        over = self.rounds is None or self.done >= self.rounds or self.target is not None
        return self.summary is not None and over

    @property
    def name(self) -> str:
        """Its method, else the name of its directory."""
        return self.setting("method") or clean(self.path.name, 60)

    def setting(self, name: str) -> str | None:
        """``method``, ``dataset``, ``runtime`` or ``seed``, from the summary or the config."""
        inner = self.table("data").get("name") if name == "dataset" else None
        value = getattr(self.summary, name, None)
        value = self.config.get(name, inner) if value is None else value
        return None if value is None else clean(value, 60)

    def table(self, name: str) -> dict[str, object]:
        """A table of the config; empty if there is none."""
        table = self.config.get(name)
        return table if isinstance(table, dict) else {}

    def accuracies(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever the server scored its model."""
        scored = ((e.round, e.accuracy) for e in self.entries)
        return [(t, a) for t, a in scored if a is not None and math.isfinite(a)]

    def best(self) -> tuple[int, float]:
        """The first (round, accuracy) of the best accuracy, where there is one."""
        return max(self.accuracies(), key=lambda point: point[1])

    def headline(self) -> dict[str, float | None]:
        """Final, best and last-10-mean accuracy so far; of the census where nothing else is."""
        if not (trained := self._trained()):
            return {"final": None, "best": None, "last10": None}
        told = over_rounds(trained)
        return {"final": told["final"], "best": told["best"], "last10": told["last10"]}

    def last(self) -> int:
        """Return how many accuracies ``last10`` averages: ten, or all if there are fewer."""
        return min(LAST, len(self._trained()))

    def _trained(self) -> list[float]:
        return [a for t, a in self.accuracies() if t > 0] or [a for _, a in self.accuracies()]

    def cost(self, direction: str) -> float:
        """Bytes sent ``up`` or ``down`` over the whole run, census included."""
        return sum(e.bytes.get(direction, 0) for e in self.entries)

    def flops(self, whose: str) -> int:
        """Operations of training by ``clients`` or ``server``; 0 where they were not counted."""
        return sum(e.flops.get(whose, 0) for e in self.entries)

    def memory(self) -> PeakMemory:
        """Most bytes of tensors in any round; none where they were not measured."""
        return PeakMemory.most([e.memory for e in self.entries if e.memory])

    def seconds(self) -> float:
        return sum(total(e) for e in self.entries)

    def scores(self) -> list[tuple[Member, ClientScore]]:
        """Every scored client, by k, as the census found it, with its last accuracies."""
        members = {member.k: member for member in self.members}
        scores = {score.k: score for entry in self.entries for score in entry.scores}
        return [(members.get(k, Member(k=k)), scores[k]) for k in sorted(scores)]

    @property
    def own_models(self) -> bool:
        """Whether clients scored models of their own, and not the global one again."""
        told = [(s.accuracy, s.accuracy_global) for _, s in self.scores() if s.accuracy is not None]
        return any(own != shared for own, shared in told)

    def on_clients(self) -> dict[str, tuple[list[float], list[int]]]:
        """Every model that all scored clients scored: their accuracies and test samples.

        First the clients' own models, if they have any, then the global one, then further ones by
        name.
        """
        told = [(m, s) for m, s in self.scores() if (s.accuracy, s.accuracy_global) != (None, None)]
        columns: dict[str, list[float | None]] = {}
        if self.own_models:
            columns["own models"] = [s.accuracy for _, s in told]
        columns[self._global()] = [s.accuracy_global for _, s in told]
        for name in told[0][1].accuracies if told else ():
            columns[name] = [s.accuracies.get(name) for _, s in told]
        sizes = [max(m.n_test or s.n or 0, 1) for m, s in told]
        known = {name: [v for v in values if v is not None] for name, values in columns.items()}
        return {name: (v, sizes) for name, v in known.items() if v and len(v) == len(told)}

    def mean_on_clients(self) -> tuple[str, float | None]:
        """Whose models clients were scored with, their own or the global one; the mean accuracy.

        Every client weighs as its test samples (AMP), so that it is the accuracy on all of them.
        """
        name, scored = next(iter(self.on_clients().items()), ("", None))
        if scored is None:
            return "", None
        return name if name == "own models" else "global model", fairness(*scored)["amp"]

    def _global(self) -> str:
        """What the run's own model is called where several are scored."""
        told = self.last_of("fairness")
        others = {"own", *(name for _, s in self.scores() for name in s.accuracies)}
        return next(
            (name for name in (told.models if told else ()) if name not in others), "global"
        )

    def spent(self) -> Privacy | None:
        """(ε, δ) after the last round of a run with differential privacy."""
        return self.entries[-1].privacy if self.entries else None

    @property
    def secret(self) -> bool:
        """Whether the journal keeps to itself who was selected, and so who failed."""
        return self.spent() is not None and self.table("privacy").get("sampling") == "secret"

    def last_of(self, field: str) -> Any:
        """Return the newest value of a field that some entries leave empty; None without one."""
        return next((v for e in reversed(self.entries) if (v := getattr(e, field))), None)

    def failures(self) -> list[Failure]:
        """Every failure, round by round."""
        return [failure for entry in self.entries for failure in entry.failures]

    def models(self) -> list[str]:
        """The architectures, in order of the first client that brings each."""
        brought = self.members or [member for member, _ in self.scores()]
        return list(dict.fromkeys(member.model for member in brought))


def total(entry: Entry) -> float:
    """Seconds of a round: its own total, else the sum of its phases."""
    phases = {n: s for n, s in entry.seconds.items() if n != "total" and math.isfinite(s)}
    return entry.seconds.get("total", sum(phases.values()))


def scalars(entry: Entry) -> dict[str, float]:
    """Every named number beside accuracy and loss: the method's metrics, drift, then fairness."""
    found = entry.metrics | ({} if entry.drift is None else {"drift": entry.drift})
    if entry.fairness is not None:
        main = entry.fairness.main
        further = {m: spread for m, spread in entry.fairness.models.items() if spread != main}
        found |= main.model_dump()
        found |= {f"{m} {n}": v for m, of in further.items() for n, v in of.model_dump().items()}
    return found


def of_clients(run: Run, *, parameters: bool) -> Table:
    """Each scored client's samples and accuracies, with its number of ``parameters`` if asked.

    Of many clients it has quantiles instead of a line each.
    """
    scores, own, models = run.scores(), run.own_models, run.models()
    if len(scores) > MANY:
        return _of_many(run)
    columns = ["parameters"] if parameters else []
    rows = list[list[str | Cell]]()
    for m, s in scores:
        k = Cell(str(s.k), dot=models.index(m.model) if m.model in models else 7)
        size = [number(m.parameters)] if parameters else []
        shares = percent(s.accuracy if own else None), percent(s.accuracy_global)
        rows.append([k, m.model, number(m.n), *size, *shares])
    header = ("client", "model", "samples", *columns, "own model", "global model")
    return Table(header, rows, "llr" if parameters else "rlr")


def _of_many(run: Run) -> Table:
    """Quantiles of the scored clients, each column by itself."""
    scores, own = run.scores(), run.own_models
    samples = quantiles(member.n for member, _ in scores) or {}
    of_own = quantiles(score.accuracy if own else None for _, score in scores) or {}
    shared = quantiles(score.accuracy_global for _, score in scores) or {}
    rows = [
        (name, number(int(samples[name])), percent(of_own.get(name)), percent(shared.get(name)))
        for name in SHARES
    ]
    header = (f"of {number(len(scores))} clients", "samples", "own model", "global model")
    return Table(header, rows, "lr")


def read(path: Path) -> Run:
    """Read a run's directory.

    Raises ``ValueError``, one line, if it is none or another release wrote its journal.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: not a directory; a report needs the directory a run wrote")
    if not (path / "journal.jsonl").is_file():
        raise ValueError(f"{path}: not a run's directory; it has no journal.jsonl")
    files = [path / name for name in ("journal.jsonl", "config.toml", "summary.json")]
    stats = [file.stat() for file in files if file.is_file()]
    return _read(path, tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats))


@lru_cache(maxsize=1)
def _read(path: Path, stamps: tuple[tuple[int, int, int], ...]) -> Run:
    """The last one is kept as long as its files are those: a run's end asks several times."""
    notes: list[str] = []
    entries = _entries(path / "journal.jsonl", notes)
    census = next((e for e in entries if e.round == 0), None)
    if census is None:
        notes.append("The journal has no census (round 0): the clients are unknown.")
    notes += [note for entry in entries for note in entry.notes]
    members = sorted(census.clients, key=lambda member: member.k) if census else []
    config, summary = _config(path / "config.toml", notes), _summary(path / "summary.json", notes)
    run = Run(path, config, entries, members, census.classes if census else [], summary, notes)
    if not run.finished:
        why = "" if run.summary is not None else " and there is no summary.json yet"
        notes.insert(0, f"Unfinished: the journal ends at round {run.reached}{why}.")
    return run


def flat(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as dotted keys: ``{"data": {"alpha": 0.5}}`` -> ``{"data.alpha": 0.5}``."""
    out: dict[str, object] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        out |= flat(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return out


def _entries(journal: Path, notes: list[str]) -> list[Entry]:
    """The journal's rounds; a round written twice (a resumed run) counts as written last."""
    by_round: dict[int, Entry] = {}
    for line in read_lines(journal):
        place = f"journal.jsonl, line {line.number}"
        if line.entry:
            told = _cleaned(line.entry.model_dump(exclude_unset=True), NAME)
            by_round[line.entry.round] = Entry.model_validate(told)
            notes += [f"{place} is not as it was written: {line.why}."] * bool(line.why)
        elif line.raw.strip():
            what = "cut off" if line.cut else "unreadable"
            notes.append(f"{place} is {what}: left out.")
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


def _summary(path: Path, notes: list[str]) -> Summary | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Summary.model_validate(_cleaned(found, LONGEST))
    except FileNotFoundError:
        pass
    except ValidationError as error:
        notes.append(f"summary.json is no summary: {clean(invalid(error))}; left out.")
    except ValueError as error:
        notes.append(f"summary.json is not JSON: {clean(error)}")
    return None


def _cleaned(value: Any, limit: int) -> Any:
    """Every text in it, keys too, on one printable line of ``limit`` characters; a ``reason`` may
    be longer."""
    if isinstance(value, dict):
        most = {"reason": LONGEST}
        return {_cleaned(k, limit): _cleaned(v, most.get(k, limit)) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, limit) for part in value]
    return _clean(value, limit) if isinstance(value, str) else value


_clean = lru_cache(maxsize=1000)(clean)
"""The keys and models of many clients are the same few words."""
