"""Tiny runs: the real ServerApp and ClientApp in this process, within seconds."""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch import Tensor

from common.parse import defaults
from common.settings.config import Value
from deploy.run.loopback import RUN_ID, Loopback
from deploy.settings import numbers, parse_override

TINY: dict[str, Value] = {
    **{"clients": 4, "rounds": 2, "fleet": "mlp@0.25,cnn2@0.5", "device": "cpu"},
    **{"data.name": "toy", "data.samples": 120, "data.test-samples": 60, "data.partition": "iid"},
    **{"train.epochs": 2, "train.lr": 0.05, "train.batch-size": 16, "noise.epochs": 1},
    **{"noise.batches": 4, "noise.batch-size": 16},
}


class TinyRun:
    """The files of a finished or interrupted run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / "journal.jsonl").read_text().splitlines()
        self.journal: list[dict[str, Any]] = [json.loads(line) for line in lines]

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    @property
    def timeless(self) -> list[dict[str, Any]]:
        """The journal without the keys that may differ between equal runs."""
        times = {"seconds", "measured", "follows", "digest"}
        return [{k: v for k, v in entry.items() if k not in times} for entry in self.journal]

    @cached_property
    def model(self) -> dict[str, Tensor]:
        """Weights of the run's network, or of all its networks."""
        return load_file(self.folder / "model.safetensors")

    @property
    def weights(self) -> str:
        return str(self.summary["weights_sha256"])


Run = Callable[..., TinyRun]
"""Type of the fixtures ``run`` and ``played``: functions from settings to a run."""


def flat(out: Path, **changes: Any) -> dict[str, Value]:
    """Return a run config: the defaults, ``TINY``, and ``changes`` (dots written as ``__``)."""
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    method = str(changes.get("method", ""))
    own = {"out": str(out), "state-dir": str(out / "state"), "experiment": "test"}
    return numbers({**defaults(method), **TINY, **own, **named}, method)


def under(table: str, **values: Any) -> dict[str, Any]:
    """Return settings of one table in the form of ``flat``: ``under("train", lr=0.1)``."""
    return {f"{table}__{key}": value for key, value in values.items()}


def listed(folder: Path, text: str) -> str:
    """Write a list of events that a run replays, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.toml"
    path.write_text(text)
    return str(path)


def overrides(text: str) -> dict[str, Any]:
    """Return settings in the form of the command line: ``overrides("train.lr=0.1 rounds=2")``."""
    return dict(parse_override(part) for part in text.split())


def play(
    config: dict[str, Value],
    grid: Loopback | Callable[..., Loopback] = Loopback,
    learnt: Path | None = None,
) -> TinyRun:
    """Run the real ServerApp with the real ClientApp in this process, or on another ``grid``.

    ``grid``: a loopback or its class. ``learnt``: folder of local training shared with other runs.
    """
    from server_app.app import app

    own = grid
    if not isinstance(own, Loopback):
        nodes = {k: {"learnt-dir": str(learnt)} for k in range(int(config["clients"])) if learnt}
        more = {"node_configs": nodes} if nodes else {}
        own = own(int(config["clients"]), config, workers=0, **more)
    with own:
        app(own, Context(RUN_ID, 0, {}, RecordDict(), dict(config)))
    return TinyRun(Path(str(config["out"])))
