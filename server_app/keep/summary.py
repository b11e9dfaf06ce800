"""summary.json and model.safetensors: what a finished or stopped run comes down to."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from common.config import Config
from common.files import write_atomically
from common.metrics import over_rounds, rounds_to
from common.records import StateDict
from common.version import VERSION
from server_app.keep.journal import Entry


def write(
    folder: Path,
    config: Config,
    entries: list[Entry],
    weights: StateDict | None,
    error: str = "",
) -> dict[str, Any]:
    """Write both files from the journal's entries; ``error``: why the run stopped, if it did."""
    if weights is not None:
        plain = {name: tensor.contiguous() for name, tensor in weights.items()}
        write_atomically(folder / "model.safetensors", save(plain))
    rounds = [entry for entry in entries if entry["round"] > 0]
    accuracies = [entry["accuracy"] for entry in rounds if entry.get("accuracy") is not None]
    summary = {
        "status": "stopped" if error else "completed",
        "error": error,
        "method": config.run.method,
        "dataset": config.data.name,
        "runtime": config.run.runtime,
        "rounds": len(rounds),
        "seed": config.run.seed,
        "accuracy": over_rounds(accuracies) if accuracies else None,
        "accuracies": _named_accuracies(rounds),
        "rounds_to_target": _rounds_to_target(rounds, config.score.target),
        "fairness": next((e["fairness"] for e in reversed(rounds) if e.get("fairness")), None),
        "accuracy_covered": rounds[-1].get("accuracy_covered") if rounds else None,
        "uncovered": entries[0].get("uncovered", []) if entries else [],
        "metrics": rounds[-1].get("metrics", {}) if rounds else {},
        "incentive": rounds[-1].get("incentive") if rounds else None,
        "cost": _cost(rounds),
        "clients": _clients(entries),
        "bytes": _sums(entries, "bytes"),
        "seconds": round(sum(e["seconds"]["total"] for e in entries), 3),
        "seconds_by_phase": {k: round(v, 3) for k, v in _sums(entries, "seconds").items()},
        "failures": [failure for entry in entries for failure in entry.get("failures", [])],
        "weights_sha256": digest(weights) if weights is not None else None,
        "versions": {
            "fedmosaic": VERSION,
            "torch": torch.__version__,
            "flwr": version("flwr"),
            "python": platform.python_version(),
        },
    }
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def complete(folder: Path, rounds: int) -> bool:
    """Whether the folder has the summary of a completed run of at least ``rounds`` rounds."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return bool(found["status"] == "completed" and found["rounds"] >= rounds)
    except (OSError, ValueError, KeyError):
        return False


def digest(weights: StateDict) -> str:
    """sha256 over names, dtypes, shapes and bytes: equal for equal weights, whatever the file."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _clients(entries: list[Entry]) -> list[dict[str, Any]]:
    """k, model, n of every client, with its last scores."""
    if not entries:
        return []
    every = [entry["scores"] for entry in entries if entry.get("scores")]
    scored: list[dict[str, Any]] = every[-1] if every else []
    by_k = {score["k"]: score for score in scored}
    return [
        {
            "k": client["k"],
            "model": client["model"],
            "n": client["n"],
            "accuracy": by_k.get(client["k"], {}).get("accuracy"),
            "accuracy_global": by_k.get(client["k"], {}).get("accuracy_global"),
            "accuracies": by_k.get(client["k"], {}).get("accuracies", {}),
        }
        for client in entries[0]["clients"]
    ]


def _named_accuracies(rounds: list[Entry]) -> dict[str, Any]:
    """Final, best and last-10 test accuracy of every named model, where there are several."""
    scored: list[dict[str, float]] = [e["accuracies"] for e in rounds if e.get("accuracies")]
    return {
        name: over_rounds([accuracies[name] for accuracies in scored if name in accuracies])
        for name in (scored[-1] if scored else {})
    }


def _rounds_to_target(rounds: list[Entry], target: float) -> dict[str, Any] | None:
    """The round of the first hit, and the first in which the mean of five scores hits; or None."""
    if not target:
        return None
    scored = [entry for entry in rounds if entry.get("accuracy") is not None]
    accuracies = [entry["accuracy"] for entry in scored]
    hits = {"first": rounds_to(accuracies, target), "mean5": rounds_to(accuracies, target, 5)}
    reached = {name: scored[i - 1]["round"] if i else None for name, i in hits.items()}
    return {"target": target, **reached}


def _cost(rounds: list[Entry]) -> dict[str, Any] | None:
    """Numbers by the literature's formula, bytes that travelled for them, bytes per number."""
    costs = [entry["cost"] for entry in rounds if entry.get("cost")]
    if not costs:
        return None
    numbers, sent = (sum(cost[name] for cost in costs) for name in ("numbers", "bytes"))
    return {"numbers": numbers, "bytes": sent, "bytes_per_number": round(sent / numbers, 4)}


def _sums(entries: list[Entry], key: str) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for entry in entries:
        for name, value in entry[key].items():
            total[name] = total.get(name, 0) + value
    return total
