"""The server's state after a round, written atomically, so that a killed run can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, final

from common.config import Config
from common.files import write_atomically
from common.records import Records
from server_app.keep.journal import Entry

FREE = {
    "run": {
        *("resume", "runtime", "out", "state_dir", "rounds", "timeout", "wait", "experiment"),
        *("max_samples", "rebind"),
    },
    "wire": {"max_mb"},
}
"""What a resumed run may change; all else decides the numbers."""


@final
class Checkpoint(Records):
    """Method state after round t, and the configuration that it belongs to."""

    t: int
    experiment: str
    config: str
    entry: str
    """The journal's line of round t, which a crash may have kept from the journal itself."""
    state: dict[str, Any]
    nodes: dict[int, int] = {}
    """Which node each client was."""


def path_in(folder: Path) -> Path:
    return folder / "checkpoint.safetensors"


def write(
    folder: Path,
    entry: Entry,
    experiment: str,
    config: Config,
    state: Records,
    nodes: dict[int, int],
) -> None:
    """Keep the state after the round of ``entry``; before the journal has that entry."""
    checkpoint = Checkpoint(
        t=entry["round"],
        experiment=experiment,
        config=_identity(config),
        entry=json.dumps(entry),
        state=dict(state),
        nodes=nodes,
    )
    write_atomically(path_in(folder), checkpoint.to_bytes(), private=True)


def read(folder: Path, config: Config) -> Checkpoint:
    """The checkpoint in ``folder``.

    Raises ``ValueError``, one line: none there, damaged, or of another configuration (first
    differing key, both values).
    """
    path = path_in(folder)
    if not path.exists():
        raise ValueError(f"{folder} has no checkpoint to resume from")
    checkpoint = Checkpoint.load(path)
    theirs, ours = json.loads(checkpoint.config), json.loads(_identity(config))
    for table in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(table, {}), ours.get(table, {})
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                name = key if table == "run" else f"{table}.{key}"
                raise ValueError(
                    f"{path} was written with {name.replace('_', '-')} = {a.get(key)!r}, "
                    f"this run has {b.get(key)!r}"
                )
    return checkpoint


def _identity(config: Config) -> str:
    tables = {
        "run": config.run,
        "data": config.data,
        "train": config.train,
        "score": config.score,
        "wire": config.wire,
        config.run.method: config.method,
    }
    dumped = {name: section.model_dump(exclude=FREE.get(name)) for name, section in tables.items()}
    return json.dumps(dumped, sort_keys=True)
