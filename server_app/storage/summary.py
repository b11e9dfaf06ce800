"""summary.json and model.safetensors: the results of a finished or stopped run."""

import json
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from common.exchange import model_file
from common.exchange.records import StateDict
from common.files import home, parse_json, write_atomically
from common.journal import (
    EMPTY,
    OVER,
    ClientScore,
    Entry,
    JsonObject,
    measure_of,
    members,
    over,
    primary_course,
)
from common.measures import ACCURACY, MEASURES
from common.metrics import MANY, over_rounds, quantiles, rounds_to
from common.settings.config import Config
from common.settings.version import VERSION

KEYS = (
    *("status", "error", "ended", "stalled", "method", "dataset", "scored_on", "runtime", "rounds"),
    *("seed", "accuracy", "accuracies", "accuracy_bn", "rounds_to_target", "fairness", "primary"),
    *("personal", "measures", "by_output", "accuracy_covered", "uncovered", "metrics"),
    *("incentive", "coefficients", "cost"),
    *("clients", "clients_in_all", "bytes", "drift", "flops", "memory", "seconds"),
    *("clock", "time_to_target"),
    *("seconds_by_phase", "failures", "further_failures", "warnings", "weights_sha256", "privacy"),
    "versions",
)
"""Keys of a summary, in their order. A key that names a field of the journal has the value of that
field over all rounds, unless ``summary`` gives it another one."""
OPTIONAL = {"clients_in_all", "drift", "flops", "memory", "further_failures", "privacy", "warnings"}
OPTIONAL |= {"stalled", "scored_on", "clock", "time_to_target", "measures", "by_output"}
"""Keys that a summary leaves out if they have no value; all other keys are ``null`` then."""


def write(
    folder: Path,
    config: Config,
    entries: list[Entry],
    weights: StateDict | None,
    error: str = "",
) -> None:
    """Write both files from the journal's entries; ``error``: why the run stopped, if it did."""
    if weights is not None:
        model_file.write(folder / "model.safetensors", weights)
    digest = model_file.digest(weights) if weights is not None else None
    values = {**summary(config, entries, error), "weights_sha256": digest}
    present = {k: values[k] for k in KEYS if values[k] not in EMPTY or k not in OPTIONAL}
    write_atomically(folder / "summary.json", (json.dumps(present, indent=1) + "\n").encode())


def summary(config: Config, entries: list[Entry], error: str) -> dict[str, object]:
    """Return all values of a summary but the digest of the weights."""
    rounds = [entry for entry in entries if entry.round > 0]
    last = rounds[-1] if rounds else Entry(round=0)
    combined = {name: over(entries, name) for name in OVER}
    spent = entries[-1].privacy if entries else None
    failures, flops, seconds = (combined[name] for name in ("failures", "flops", "seconds"))
    return {
        **{k: v.as_dict() if isinstance(v, JsonObject) else v for k, v in combined.items()},
        "status": "stopped" if error else "completed",
        "error": error,
        "ended": _ended(last, error),
        "method": config.run.method,
        "dataset": config.data.name,
        "scored_on": None if config.data.score_on == "test" else config.data.score_on,
        "runtime": config.run.runtime,
        "rounds": len(rounds),
        "seed": config.run.seed,
        "rounds_to_target": _rounds_to_target(rounds, config.score.target),
        "time_to_target": _time_to_target(rounds, config.score.target),
        "primary": _primary(rounds),
        "incentive": last.incentive and last.incentive.model_dump(),  # with those of the clients
        "coefficients": last.coefficients or None,
        "clients": _clients(entries),
        "clients_in_all": _clients_in_all(entries),
        "flops": {**flops, "total": sum(flops.values())} if flops else None,
        "seconds": None if config.privacy.hides_times else _seconds(entries),
        "seconds_by_phase": {phase: round(spent, 3) for phase, spent in seconds.items()},
        "failures": [failure.model_dump() for failure in failures[:MANY]],
        "further_failures": len(failures) - MANY if len(failures) > MANY else None,
        "warnings": [note for entry in rounds for note in entry.notes] or None,
        "clock": _clock(rounds),
        "privacy": spent and {**config.privacy.model_dump(by_alias=True), **spent.model_dump()},
        "versions": {
            "fedmosaic": VERSION,
            "torch": torch.__version__,
            "flwr": version("flwr"),
            "python": platform.python_version(),
        },
    }


def _seconds(entries: list[Entry]) -> float:
    return round(sum(entry.seconds.get("total", 0.0) for entry in entries), 3)


def _ended(last: Entry, error: str) -> str:
    """Return why the run has no further round."""
    if error:
        return "error"
    return "target" if last.reached is not None else "patience" if last.stalled else "rounds"


def place(out: str, experiment: str) -> Path:
    """Return the folder of a run's results: ``out``, or ``~/.fedmosaic/runs/EXPERIMENT``."""
    return Path(out).expanduser() if out else home() / ".fedmosaic" / "runs" / experiment


def complete(folder: Path, config: Config) -> str:
    """Return why the completed run in the folder has no further round under ``config``.

    The string is empty if a round follows, or if there is no completed run.
    """
    if config.run.from_round >= 0:
        return ""
    try:
        saved = parse_json((folder / "summary.json").read_text(encoding="utf-8"))
        status, rounds, accuracy = saved["status"], saved["rounds"], saved["accuracy"]
    except (OSError, ValueError, KeyError):
        return ""
    if status != "completed":
        return ""
    if rounds >= config.run.rounds:
        return f"rounds = {config.run.rounds}, all of them done; for more: -s rounds=N"
    scored = saved.get("primary") or accuracy  # earlier releases have no key "primary"
    measure = MEASURES[(scored or {}).get("measure", ACCURACY.name)]
    if config.score.ends(scored and scored["final"], measure):
        target = f"score.target = {config.score.target:g}"
        return f"{target} was reached in round {rounds}; for more: -s score.stop=false"
    if 0 < config.score.patience <= saved.get("stalled", 0):
        stalled = f"score.patience = {config.score.patience} ended it in round {rounds}"
        return f"{stalled}; for more: -s score.patience=0"
    return ""


def check_incomplete(folder: Path, config: Config) -> None:
    """Raise ``ValueError`` if the folder has a completed run without further rounds."""
    if why := complete(folder, config):
        raise ValueError(f"the run is complete: {why}")


def _time_to_target(rounds: list[Entry], target: float) -> dict[str, float | None] | None:
    """Return the end of the first scored round that reaches the target, on the virtual clock.

    ``seconds`` is None if the target is not reached; the result is None without target or clock.
    """
    if not target or not any(entry.clock for entry in rounds):
        return None
    scored = ((entry, entry.primary_score) for entry in rounds if entry.clock)
    reaches = measure_of(rounds).reaches
    ends = (e.clock.end for e, a in scored if e.clock and a is not None and reaches(a, target))
    return {"target": target, "seconds": next(ends, None)}


def _clock(rounds: list[Entry]) -> dict[str, object] | None:
    """Return the end of the last round on the virtual clock, and joules of all rounds if known."""
    times = [entry.clock for entry in rounds if entry.clock]
    if not times:
        return None
    energies = [time.energy for time in times if time.energy is not None]
    known = {"energy": round(sum(energies), 6)} if len(energies) == len(times) else {}
    return {"end": times[-1].end, **known}


def _clients(entries: list[Entry]) -> list[dict[str, object]]:
    """Return k, model, n and last scores of every client; empty for more than ``MANY`` clients."""
    clients = members(entries)
    if len(clients) > MANY:
        return []
    by_k = {score.k: score for score in over(entries, "scores")}
    no_score, known = ClientScore(k=-1), {"accuracy", "accuracy_global", "accuracies"}
    if measure_of(entries) is not ACCURACY:
        known = {"measures", "measures_global"}
    return [
        {
            **client.model_dump(include={"k", "model", "n"}),
            **by_k.get(client.k, no_score).model_dump(include=known),
        }
        for client in clients
    ]


def _clients_in_all(entries: list[Entry]) -> dict[str, object] | None:
    """Return totals and quantiles in place of ``clients`` for more than ``MANY`` clients.

    The journal has every single client.
    """
    clients, scores, measure = members(entries), over(entries, "scores"), measure_of(entries)
    if len(clients) <= MANY:
        return None
    return {
        "count": len(clients),
        "scored": len(scores),
        "models": Counter(client.model for client in clients),
        "n": quantiles(client.n for client in clients),
        measure.name: quantiles(score.own for score in scores),
        f"{measure.name}_global": quantiles(score.shared for score in scores),
    }


def _primary(rounds: Sequence[Entry]) -> dict[str, object] | None:
    """Return the course of the primary score, its measure, and its newest metrics by class.

    None if no round has the score.
    """
    if not (course := primary_course(rounds)):
        return None
    last = next(entry for entry in rounds if entry.round == course[-1][0])
    of, measure = [score for _, score in course], last.measure
    name = {} if measure is ACCURACY else {"measure": measure.name}
    metrics = last.by_class.model_dump(exclude_none=True) if last.by_class else {}
    metrics = {"by_class" if name == "accuracy" else name: v for name, v in metrics.items()}
    return {"score": last.primary, **name, **over_rounds(of, measure.best), **metrics}


def _rounds_to_target(rounds: list[Entry], target: float) -> dict[str, float | None] | None:
    """Return the first round that reaches the target, by its score and by the mean of five scores.

    A round is None if the target is not reached; the result is None without a target.
    """
    if not target:
        return None
    course, reaches = primary_course(rounds), measure_of(rounds).reaches
    scores = [score for _, score in course]
    windows = {"first": 1, "mean5": 5}
    hits = {name: rounds_to(scores, target, of, reaches) for name, of in windows.items()}
    reached = {name: course[i - 1][0] if i else None for name, i in hits.items()}
    return {"target": target, **reached}
