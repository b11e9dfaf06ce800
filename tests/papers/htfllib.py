"""HtFLlib's own code beside ours: the same samples in the same order, networks, first weights.

The environment variable ``HTFLLIB`` names a checkout of https://github.com/TsingZ0/HtFLlib. Nothing
of it is part of this project, and it is only imported in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from client_app.participant import Participant, upload
from common.data.batches import standardise
from common.data.dataset import Dataset, channel_statistics, resize
from common.data.embedded import digits
from common.exchange.records import StateDict
from common.parse import defaults, parse
from common.settings.config import Value
from deploy.study.finished import finished
from tests.papers import htfllib_driver
from tests.support.tiny import play

CHECKOUT = os.environ.get("HTFLLIB", "")
ROUNDS, CLIENTS, WIDTH = 3, 6, 32
FLEET = {
    "fedavg-cnn": "FedAvgCNN(in_features=3, num_classes=args.num_classes, dim=64)",
    "resnet10-cut1": "resnet4(num_classes=args.num_classes)",
    "resnet10-cut2": "resnet6(num_classes=args.num_classes)",
}
"""Our architectures and HtFLlib's expressions for them, for images of 16×16 pixels."""


@lru_cache(maxsize=1)
def coloured() -> Dataset:
    """Return the digits as colour images of 16×16 pixels, which HtFLlib's networks accept."""
    given = digits()
    x, x_test = (resize(x, 16).expand(-1, 3, -1, -1).contiguous() for x in (given.x, given.x_test))
    mean, std = channel_statistics(x)
    return replace(given, name="coloured", x=x, x_test=x_test, mean=mean, std=std)


@final
@dataclass(frozen=True)
class Compared:
    """Largest absolute differences between our run and HtFLlib's.

    ``weights``: of parameters and buffers of clients and server; ``moved``: the largest change of a
    weight in training, for scale; ``accuracy``: after each round, of all test samples together.
    """

    weights: float
    moved: float
    accuracy: float


def compare(method: str, folder: Path, ours: dict[str, Value], theirs: dict[str, Any]) -> Compared:
    """Return the differences after ``ROUNDS`` rounds of ``method`` with these further settings."""
    flat = _settings(folder, method) | ours
    first = _first_weights(folder, flat)
    run = play(flat)
    held = finished(run.folder, "config.toml")
    members = [_client(held.flat, k) for k in range(CLIENTS)]
    system = folder / "htfllib" / "system"
    _write_data(folder / "htfllib" / "dataset" / "ours", members)
    job = {
        "method": method,
        "system": str(Path(CHECKOUT) / "system"),
        "settings": {
            "models": list(FLEET.values()),
            "num_clients": CLIENTS,
            "num_classes": 10,
            "feature_dim": WIDTH,
            "global_rounds": ROUNDS - 1,
            "local_epochs": flat["train.epochs"],
            "batch_size": flat["train.batch-size"],
            "local_learning_rate": flat["train.lr"],
            **theirs,
        },
    }
    after, told = _their_run(system, job, [first[member.spec] for member in members])
    pairs = [
        (value, after[f"client-{k}/{i:03d}"], start)
        for k, member in enumerate(members)
        for i, (value, start) in enumerate(
            zip(_own(held.client(k)), first[member.spec].values(), strict=True)
        )
    ]
    server = [after[name] for name in sorted(after) if name.startswith("server/")]
    if server:
        kept: Any = held.saved.state
        state: StateDict = kept.get("w") or kept["head"]
        pairs += [(a, b, a) for a, b in zip(state.values(), server, strict=True)]
    accuracies = [e["personal"]["accuracy"] for e in run.journal[1:]]
    return Compared(
        max(float((a.float() - b.float()).abs().max()) for a, b, _ in pairs),
        max(float((a - c).abs().max()) for a, _, c in pairs if a.is_floating_point()),
        max(abs(a - b) for a, b in zip(accuracies, told["accuracies"][1:], strict=True)),
    )


def _settings(folder: Path, method: str) -> dict[str, Value]:
    return defaults(method) | {
        "method": method,
        "rounds": ROUNDS,
        "clients": CLIENTS,
        "fleet": ",".join(FLEET),
        "global-model": next(iter(FLEET)),
        "stem": "imagenet",
        "feature-dim": WIDTH,
        "weights": str(folder / "{model}.safetensors"),
        "out": str(folder / "run"),
        "state-dir": str(folder / "run" / "state"),
        "experiment": "beside",
        "device": "cpu",
        "data.name": "tests.papers.htfllib:coloured",
        "data.samples": 300,
        "data.test-samples": 100,
        "data.partition": "pathological",
        "data.classes-per-client": 4,
        "data.test": "merge",
        "data.test-fraction": 0.25,
        "train.epochs": 1,
        "train.batch-size": 10,
        "train.lr": 0.01,
        "train.momentum": 0.0,
        "train.shuffle": False,
        "train.drop-last": True,
        "train.memory-format": "contiguous",
        "average.bn-buffers": False,
        "score.primary": "personal",
    }


def _first_weights(folder: Path, flat: dict[str, Value]) -> dict[str, StateDict]:
    """Write the first weights of each architecture to ``folder``; return them by architecture."""
    task = Participant(parse({**flat, "weights": ""}), {"partition-id": 0}, "beside").task
    weights = {spec: upload(task.build(spec, name=("first",))) for spec in FLEET}
    for spec, state in weights.items():
        save_file(state, folder / f"{spec}.safetensors")
    return weights


def _client(flat: dict[str, Value], k: int) -> Participant:
    return Participant(parse(flat), {"partition-id": k, "device": "cpu"}, "beside")


def _own(handler: Any) -> list[Tensor]:
    """Return the weights of a client's private model after the last round."""
    return list(upload(handler.local(ROUNDS + 1)).values())


def _write_data(folder: Path, members: Sequence[Participant]) -> None:
    """Write each client's normalised samples as HtFLlib stores them, in the order of training."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    for k, member in enumerate(members):
        (x, y), order = member.train_set, member._order
        for part, images, labels in (
            ("train", x[order], y[order]),
            ("test", *member.test_set),
        ):
            task = member.task
            values = standardise(images, task.mean, task.std, "dataset")
            data = {"x": values.numpy(), "y": labels.numpy()}
            np.savez(folder / part / f"{k}.npz", data=np.array(data, dtype=object))


def _their_run(
    system: Path, job: dict[str, Any], first: Sequence[StateDict]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run HtFLlib in the folder ``system``; return weights after it, and what it printed."""
    system.mkdir(parents=True)
    (system / "job.json").write_text(json.dumps(job))
    named = {f"client-{k}": state for k, state in enumerate(first)} | {"server": first[0]}
    for name, state in named.items():
        numbered = {f"{i:03d}": value for i, value in enumerate(state.values())}
        save_file(numbered, system / f"{name}.safetensors")
    root = str(Path(__file__).parents[2])
    # their items are pickled networks, which torch loads only if told so
    more = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, htfllib_driver.__file__]
    done = subprocess.run(
        command, cwd=system, env={**os.environ, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(system / "after.safetensors"), json.loads((system / "after.json").read_text())
