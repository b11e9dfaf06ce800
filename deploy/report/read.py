"""A run's directory, read back: config.toml, journal.jsonl and, once it is over, summary.json.

Reading is tolerant: a run that goes on, was killed, or lost half of its last line still reads, and
``Run.notes`` says what was missing. Only a directory without a journal is refused.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.report.clean import clean

T = TypeVar("T", bound=BaseModel)


@final
class Peer(BaseModel):
    """A client as the census (round 0) found it; ``counts`` holds its samples per class."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    k: int
    model: str = "?"
    n: int = 0
    n_test: int = 0
    parameters: int | None = None
    counts: list[int] = Field(default_factory=list)


@final
class Score(BaseModel):
    """Client k's accuracies (0 to 1) on its own test share: its own model's, the global one's."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    k: int
    model: str = "?"
    n: int | None = None
    accuracy: float | None = None
    accuracy_global: float | None = None
    accuracies: dict[str, float] = Field(default_factory=dict)


@final
class Failure(BaseModel):
    """A reply that was missing, broken or refused."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    k: int | None = None
    round: int | None = None
    reason: str = "no reason given"


@final
class Entry(BaseModel):
    """One line of the journal: the server's accuracy (0 to 1), loss, costs and failures."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    round: int = Field(ge=0)
    accuracy: float | None = None
    loss: float | None = None
    selected: list[int] = Field(default_factory=list)
    replied: list[int] = Field(default_factory=list)
    classes: list[Any] = Field(default_factory=list)
    clients: Any = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    accuracies: dict[str, Any] = Field(default_factory=dict)
    fairness: dict[str, Any] = Field(default_factory=dict)
    scores: list[Score] = Field(default_factory=list)
    cost: dict[str, float] = Field(default_factory=dict)
    incentive: dict[str, Any] = Field(default_factory=dict)
    failures: list[Failure] = Field(default_factory=list)
    bytes: dict[str, float] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Every named number beside accuracy and loss: the method's metrics, then fairness."""
        named = {**self.metrics, **self.fairness}
        for model, values in self.fairness.items():
            if isinstance(values, dict) and values != _only_numbers(self.fairness):
                named |= {f"{model} {name}": value for name, value in values.items()}
        return {clean(name, 40): float(v) for name, v in named.items() if _is_number(v)}

    def named_accuracies(self) -> dict[str, float]:
        return {clean(n, 40): float(v) for n, v in self.accuracies.items() if _is_number(v)}


@final
@dataclass(frozen=True)
class Run:
    """What one directory says about its run. ``entries`` is in order of the round, census first."""

    path: Path
    config: dict[str, Any]
    entries: list[Entry]
    peers: list[Peer]
    classes: list[str]
    summary: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int | None:
        """How many rounds were asked for, if that is known."""
        asked = self.config.get("rounds", (self.summary or {}).get("rounds"))
        return asked if isinstance(asked, int) and not isinstance(asked, bool) else None

    @property
    def done(self) -> int:
        """The last round the journal holds."""
        return max((e.round for e in self.entries), default=0)

    @property
    def finished(self) -> bool:
        return self.summary is not None and (self.rounds is None or self.done >= self.rounds)

    def setting(self, name: str) -> str | None:
        """``method``, ``dataset``, ``runtime`` or ``seed``, from the summary or the config."""
        data = self.config.get("data")
        inner = data.get("name") if name == "dataset" and isinstance(data, dict) else None
        value = (self.summary or {}).get(name, self.config.get(name, inner))
        return None if value is None else clean(value, 60)

    def accuracies(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever the server scored its model."""
        return [
            (e.round, e.accuracy)
            for e in self.entries
            if e.accuracy is not None and math.isfinite(e.accuracy)
        ]

    def headline(self) -> dict[str, float | None]:
        """Final, best and last-10-mean accuracy: the summary's, else the journal's so far."""
        trained = [a for t, a in self.accuracies() if t > 0] or [a for _, a in self.accuracies()]
        last = trained[-10:]
        counted: dict[str, float | None] = {
            "final": trained[-1] if trained else None,
            "best": max(trained, default=None),
            "last10": sum(last) / len(last) if last else None,
        }
        told = (self.summary or {}).get("accuracy")
        told = told if isinstance(told, dict) else {}
        return {n: float(told[n]) if _is_number(told.get(n)) else v for n, v in counted.items()}

    def cost(self, direction: str) -> float:
        """Bytes sent ``up`` or ``down`` over the whole run, census included."""
        return sum(e.bytes.get(direction, 0.0) for e in self.entries)

    def seconds(self) -> float:
        told = (self.summary or {}).get("seconds")
        if _is_number(told):
            return float(told)  # type: ignore[arg-type]
        return sum(total(e) for e in self.entries)

    def scores(self) -> list[Score]:
        """Every client's last accuracies, by k, with the model and n of the census."""
        by_k: dict[int, Score] = {}
        for entry in self.entries:
            by_k |= {s.k: s for s in entry.scores}
        by_k |= {s.k: s for s in _parsed(Score, (self.summary or {}).get("clients"))}
        peers = {p.k: p for p in self.peers}
        filled = []
        for k, s in sorted(by_k.items()):
            peer = peers.get(k, Peer(k=k))
            model = clean(s.model if s.model != "?" else peer.model, 40)
            n = s.n if s.n is not None else peer.n
            filled.append(s.model_copy(update={"model": model, "n": n}))
        return filled

    def failures(self) -> list[Failure]:
        """Every failure in order; an entry's round stands in where the failure names none."""
        found = [
            f if f.round is not None else f.model_copy(update={"round": e.round})
            for e in self.entries
            for f in e.failures
        ] or _parsed(Failure, (self.summary or {}).get("failures"))
        return [f.model_copy(update={"reason": clean(f.reason, 500)}) for f in found]

    def models(self) -> list[str]:
        """The architectures, in order of the first client that brings each."""
        names = [p.model for p in self.peers] or [s.model for s in self.scores()]
        return list(dict.fromkeys(names))


def total(entry: Entry) -> float:
    """Seconds of a round: its own total, else the sum of its phases."""
    phases = {n: s for n, s in entry.seconds.items() if n != "total" and math.isfinite(s)}
    return entry.seconds.get("total", sum(phases.values()))


def read(path: Path) -> Run:
    """Read a run's directory; ValueError if it is none."""
    if not path.is_dir():
        raise ValueError(f"{path}: not a directory; a report needs the directory a run wrote")
    journal = path / "journal.jsonl"
    if not journal.is_file():
        raise ValueError(f"{path}: not a run's directory; it has no journal.jsonl")
    notes: list[str] = []
    entries = _entries(journal, notes)
    census = next((e for e in entries if e.round == 0), None)
    if census is None:
        notes.append("The journal has no census (round 0): the clients are unknown.")
    run = Run(
        path=path,
        config=_config(path / "config.toml", notes),
        entries=entries,
        peers=sorted(_peers(census), key=lambda p: p.k),
        classes=[clean(c, 40) for c in census.classes] if census else [],
        summary=_summary(path / "summary.json", notes),
        notes=notes,
    )
    if not run.finished:
        of = "" if run.rounds is None else f" of {run.rounds}"
        why = "" if run.summary is not None else " and there is no summary.json yet"
        notes.insert(0, f"Unfinished: the journal ends at round {run.done}{of}{why}.")
    return run


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: ``{"data": {"alpha": 0.5}}`` -> ``{"data.alpha": 0.5}``."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _entries(journal: Path, notes: list[str]) -> list[Entry]:
    """The journal's rounds; a round written twice (a resumed run) counts as written last."""
    text = journal.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    by_round: dict[int, Entry] = {}
    for i, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = Entry.model_validate(json.loads(line))
        except (json.JSONDecodeError, ValidationError, RecursionError):
            cut = i == len(lines)
            notes.append(
                f"journal.jsonl, line {i} is {'cut off' if cut else 'unreadable'}: left out."
            )
            continue
        by_round[entry.round] = entry
    return [by_round[t] for t in sorted(by_round)]


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append("config.toml is missing: the settings are unknown.")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        notes.append(f"config.toml is not TOML: {clean(error)}")
        return {}


def _summary(path: Path, notes: list[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        notes.append(f"summary.json is not JSON: {clean(error)}")
        return None
    if not isinstance(summary, dict):
        notes.append("summary.json is not an object: left out.")
        return None
    return summary


def _only_numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _is_number(value)}


def _parsed(model: type[T], rows: object) -> list[T]:
    """The rows that read as ``model``; the others are left out."""
    out: list[T] = []
    for row in rows if isinstance(rows, list) else []:
        try:
            out.append(model.model_validate(row))
        except ValidationError:
            continue
    return out


def _peers(census: Entry | None) -> list[Peer]:
    found = _parsed(Peer, census.clients if census else None)
    return [p.model_copy(update={"model": clean(p.model, 40)}) for p in found]
