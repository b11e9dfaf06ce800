"""Cache of local training results, shared by several runs on one machine.

The runs of a table often differ only in the server's step after the same local training. Training
on labels alone depends on the client, its data, its settings and its initial weights. The first run
stores the result under a digest of these, and later runs load it. Only the node setting
``learnt-dir`` names the folder; a table sets it for its runs.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import final

from client_app.participant import Participant, upload
from common.exchange.model_file import digest
from common.exchange.records import Records, StateDict
from common.files import Damaged, write_atomically
from common.models.classifier import Classifier
from common.names import version_of

IGNORED = {"partition-id", "num-partitions", "state-dir", "learnt-dir", "key", "ca", "server-keys"}
IGNORED |= {"ledger", "max-rounds", "max-epsilon", "roster"}
"""Node settings that do not change the training, or that the digest contains already."""


@final
class TrainingResult(Records, kind="reuse.Learnt"):
    """A client's network after training, and its scalars for the journal."""

    w: StateDict
    metrics: dict[str, float]


def once(
    p: Participant, t: int, net: Classifier, labels: str, train: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Train ``net`` in round t with ``train()``, or load the result of an earlier run.

    ``train`` must be ``p.train`` on cross-entropy and nothing else. ``labels`` describes how its
    loss uses the labels. Return the scalars for the journal.
    """
    run = p.config.run
    if not p.learnt or run.flops or run.memory:  # a loaded result has no costs to measure
        return train()
    path = Path(p.learnt) / f"{_name(p, t, net, labels)}.safetensors"
    with contextlib.suppress(Damaged, OSError):
        if path.exists():
            result = TrainingResult.load(path)
            net.load_state_dict(result.w)
            return result.metrics
    metrics = train()
    with contextlib.suppress(OSError):  # with a full disk, later runs train again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path, TrainingResult(w=upload(net), metrics=metrics).pieces(), private=True
        )
    return metrics


def _name(p: Participant, t: int, net: Classifier, labels: str) -> str:
    """Return a digest of everything that the training result depends on."""
    run = p.config.run
    inputs = {
        "code": version_of(p.config),
        "labels": labels,
        "start": digest(upload(net)),
        "client": [p.k, p.clients, p.spec],
        "round": [t, p.task.lr(t)],
        "node": {key: value for key, value in sorted(p.node.items()) if key not in IGNORED},
        "run": [run.seed, run.stem, run.projection, run.precision, run.threads, run.device],
        "data": p.config.data.model_dump(),
        "train": p.config.train.model_dump(),
    }
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
