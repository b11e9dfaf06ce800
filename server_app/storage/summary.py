"""summary.json and model.safetensors: the results of a finished or stopped run."""

import json
import platform
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch

from common.exchange import model_file
from common.exchange.records import StateDict
from common.files import write_atomically
from common.journal import ClientScore, Entry, PeakMemory, members
from common.metrics import MANY, over_rounds, quantiles, rounds_to
from common.settings.config import Config
from common.settings.version import VERSION

N = TypeVar("N", int, float)
OPTIONAL = {"clients_in_all", "drift", "flops", "memory", "further_failures", "privacy", "warnings"}
OPTIONAL |= {"stalled", "scored_on"}
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
    rounds = [entry for entry in entries if entry.round > 0]
    last = rounds[-1] if rounds else Entry(round=0)
    accuracies = [entry.accuracy for entry in rounds if entry.accuracy is not None]
    fair = next((entry.fairness for entry in reversed(rounds) if entry.fairness), None)
    drifts = [entry.drift for entry in rounds if entry.drift is not None]
    failures = [failure.model_dump() for entry in entries for failure in entry.failures]
    warnings = [note for entry in rounds for note in entry.notes]
    flops = _sums(entry.flops for entry in entries)
    memory = [entry.memory for entry in entries if entry.memory]
    settings = config.privacy.model_dump(by_alias=True)
    summary: dict[str, object] = {
        "status": "stopped" if error else "completed",
        "error": error,
        "ended": _ended(last, error),
        "stalled": last.stalled,
        "method": config.run.method,
        "dataset": config.data.name,
        "scored_on": None if config.data.score_on == "test" else config.data.score_on,
        "runtime": config.run.runtime,
        "rounds": len(rounds),
        "seed": config.run.seed,
        "accuracy": over_rounds(accuracies) if accuracies else None,
        "accuracies": _named_accuracies([entry.accuracies for entry in rounds]),
        "accuracy_bn": _named_accuracies([entry.accuracy_bn for entry in rounds]),
        "rounds_to_target": _rounds_to_target(rounds, config.score.target),
        "fairness": fair.as_dict() if fair else None,
        "primary": _primary(rounds),
        "personal": _personal(rounds),
        "accuracy_covered": last.accuracy_covered,
        "uncovered": entries[0].uncovered if entries else [],
        "metrics": last.metrics,
        "incentive": last.incentive.model_dump() if last.incentive else None,
        "coefficients": last.coefficients or None,
        "cost": _cost(rounds),
        "clients": _clients(entries),
        "clients_in_all": _clients_in_all(entries),
        "bytes": _sums(entry.bytes for entry in entries),
        "drift": statistics.fmean(drifts) if drifts else None,
        "flops": {**flops, "total": sum(flops.values())} if flops else None,
        "memory": PeakMemory.most(memory).as_dict() if memory else None,
        "seconds": round(sum(entry.seconds.get("total", 0.0) for entry in entries), 3),
        "seconds_by_phase": {
            phase: round(spent, 3) for phase, spent in _sums(e.seconds for e in entries).items()
        },
        "failures": failures[:MANY],
        "further_failures": len(failures) - MANY if len(failures) > MANY else None,
        "warnings": warnings or None,
        "weights_sha256": model_file.digest(weights) if weights is not None else None,
        "privacy": last.privacy and {**settings, **last.privacy.model_dump()},
        "versions": {
            "fedmosaic": VERSION,
            "torch": torch.__version__,
            "flwr": version("flwr"),
            "python": platform.python_version(),
        },
    }
    present = {k: v for k, v in summary.items() if v is not None or k not in OPTIONAL}
    write_atomically(folder / "summary.json", (json.dumps(present, indent=1) + "\n").encode())


def _ended(last: Entry, error: str) -> str:
    """Return why the run has no further round."""
    if error:
        return "error"
    return "target" if last.reached is not None else "patience" if last.stalled else "rounds"


def place(out: str, experiment: str) -> Path:
    """Return the folder of a run's results: ``out``, or ``~/.fedmosaic/runs/EXPERIMENT``."""
    return Path(out).expanduser() if out else Path.home() / ".fedmosaic" / "runs" / experiment


def complete(folder: Path, config: Config) -> str:
    """Return why the completed run in the folder has no further round under ``config``.

    The string is empty if a round follows, or if there is no completed run.
    """
    if config.run.from_round >= 0:
        return ""
    try:
        saved = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        status, rounds, accuracy = saved["status"], saved["rounds"], saved["accuracy"]
    except (OSError, ValueError, KeyError):
        return ""
    if status != "completed":
        return ""
    if rounds >= config.run.rounds:
        return f"rounds = {config.run.rounds}, all of them done; for more: -s rounds=N"
    scored = saved.get("primary") or accuracy  # earlier releases have no key "primary"
    if config.score.ends(scored and scored["final"]):
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


def _clients(entries: list[Entry]) -> list[dict[str, object]]:
    """Return k, model, n and last scores of every client; empty for more than ``MANY`` clients."""
    clients = members(entries)
    if len(clients) > MANY:
        return []
    by_k = {score.k: score for score in _scores(entries)}
    no_score = ClientScore(k=-1)
    return [
        {
            "k": client.k,
            "model": client.model,
            "n": client.n,
            **by_k.get(client.k, no_score).model_dump(
                include={"accuracy", "accuracy_global", "accuracies"}
            ),
        }
        for client in clients
    ]


def _scores(entries: list[Entry]) -> list[ClientScore]:
    """Return the clients' last scores."""
    return next((entry.scores for entry in reversed(entries) if entry.scores), [])


def _clients_in_all(entries: list[Entry]) -> dict[str, object] | None:
    """Return totals and quantiles in place of ``clients`` for more than ``MANY`` clients.

    The journal has every single client.
    """
    clients, scores = members(entries), _scores(entries)
    if len(clients) <= MANY:
        return None
    return {
        "count": len(clients),
        "scored": len(scores),
        "models": Counter(client.model for client in clients),
        "n": quantiles(client.n for client in clients),
        "accuracy": quantiles(score.accuracy for score in scores),
        "accuracy_global": quantiles(score.accuracy_global for score in scores),
    }


def _named_accuracies(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return final, best and last-10 test accuracy of the models scored last, by name."""
    scored = [accuracies for accuracies in rounds if accuracies]
    return {
        name: over_rounds([accuracies[name] for accuracies in scored if name in accuracies])
        for name in (scored[-1] if scored else {})
    }


def _primary(rounds: list[Entry]) -> dict[str, object] | None:
    """Return the course of the primary accuracy, and its newest metrics by class.

    None if no round has the score.
    """
    scored = [(entry, a) for entry in rounds if (a := entry.primary_accuracy) is not None]
    if not scored:
        return None
    newest, _ = scored[-1]
    metrics = newest.by_class.model_dump() if newest.by_class else {}
    metrics = {"by_class" if name == "accuracy" else name: v for name, v in metrics.items()}
    return {"score": newest.primary, **over_rounds([a for _, a in scored]), **metrics}


def _personal(rounds: list[Entry]) -> dict[str, object] | None:
    """Return the course of the personal accuracy, and its newest statistics over clients."""
    scored = [entry.personal for entry in rounds if entry.personal]
    if not scored:
        return None
    over = over_rounds([personal.accuracy for personal in scored])
    return {**over, **scored[-1].model_dump(exclude={"accuracy"})}


def _rounds_to_target(rounds: list[Entry], target: float) -> dict[str, float | None] | None:
    """Return the first round that reaches the target, by its score and by the mean of five scores.

    A round is None if the target is not reached; the result is None without a target.
    """
    if not target:
        return None
    scored = [(e.round, a) for e in rounds if (a := e.primary_accuracy) is not None]
    accuracies = [accuracy for _, accuracy in scored]
    hits = {"first": rounds_to(accuracies, target), "mean5": rounds_to(accuracies, target, 5)}
    reached = {name: scored[i - 1][0] if i else None for name, i in hits.items()}
    return {"target": target, **reached}


def _cost(rounds: list[Entry]) -> dict[str, float] | None:
    """Return numbers by the literature's formula, bytes sent for them, and bytes per number."""
    costs = [entry.cost for entry in rounds if entry.cost]
    if not costs:
        return None
    numbers, sent = sum(cost.numbers for cost in costs), sum(cost.bytes for cost in costs)
    return {"numbers": numbers, "bytes": sent, "bytes_per_number": round(sent / numbers, 4)}


def _sums(parts: Iterable[Mapping[str, N]]) -> dict[str, N]:
    total: dict[str, N] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
