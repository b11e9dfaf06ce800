"""Local training that several runs on one machine have in common is done once.

Rows of a table often differ only in what the server makes of the same trained clients. Training by
the labels alone depends on the client, its data, its settings and the weights that it starts from;
under a digest of these the first run keeps the result, and the others take it. Only the setting
``learnt-dir`` of a client's node, which a table gives its runs, can name the folder.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import final

from client_app.participant import Participant, upload
from common.exchange.records import Records, StateDict
from common.files import Damaged, write_atomically
from common.model_file import digest
from common.models.classifier import Classifier
from common.settings.names import version_of

NOT_HERE = {"partition-id", "num-partitions", "state-dir", "learnt-dir", "key", "ca"}
"""Settings of a node that its training does not depend on, or that stand in the name anyway."""


@final
class TrainingResult(Records, kind="reuse.Learnt"):
    """A client's network after training, and what the journal heard of it."""

    w: StateDict
    metrics: dict[str, float]


def once(
    p: Participant, t: int, net: Classifier, labels: str, train: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """``train()``, which trains ``net`` in round t, or what it did in an earlier run.

    ``train`` must be ``p.train`` on cross-entropy and nothing else; ``labels`` says how its loss
    reads the labels. Returns its scalars for the journal.
    """
    run = p.config.run
    if not p.learnt or run.flops or run.memory:  # what is not done again would not be measured
        return train()
    path = Path(p.learnt) / f"{_name(p, t, net, labels)}.safetensors"
    with contextlib.suppress(Damaged, OSError):
        if path.exists():
            learnt = TrainingResult.load(path)
            net.load_state_dict(learnt.w)
            return learnt.metrics
    metrics = train()
    with contextlib.suppress(OSError):  # a full disk costs time, not the run
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path, TrainingResult(w=upload(net), metrics=metrics).pieces(), private=True
        )
    return metrics


def _name(p: Participant, t: int, net: Classifier, labels: str) -> str:
    """A digest of all that decides what the training gives."""
    run = p.config.run
    told = {
        "code": version_of(p.config),
        "labels": labels,
        "start": digest(upload(net)),
        "client": [p.k, p.clients, p.spec],
        "round": [t, p.task.lr(t)],
        "node": {key: value for key, value in sorted(p.node.items()) if key not in NOT_HERE},
        "run": [run.seed, run.stem, run.projection, run.precision, run.threads, run.device],
        "data": p.config.data.model_dump(),
        "train": p.config.train.model_dump(),
    }
    text = json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
