"""The server's state after a round, written atomically, so that a killed run can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import final

from common.config import Config
from common.files import write_atomically
from common.journal import Entry
from common.options import Descent
from common.plugins import table_of
from common.records import Records

FREE = {
    "run": {
        *("resume", "runtime", "out", "state_dir", "rounds", "timeout", "wait", "experiment"),
        *("max_samples", "rebind", "track", "plugins"),
    },
    "score": {"stop"},
    "wire": {"max_mb"},
    "node": {"device", "memory_mb", "state_dir"},
}
"""What a resumed run may change; all else decides the numbers, and so do ``rounds`` if a learning
rate falls over the whole run (``cosine``)."""


@final
class Checkpoint(Records):
    """Method state after round t, and the configuration that it belongs to."""

    t: int
    experiment: str
    config: str
    entry: str
    """The journal's line of round t, which a crash may have kept from the journal itself."""
    state: dict[str, object]
    nodes: dict[int, int] = {}
    """Which node each client was."""


def path_in(folder: Path) -> Path:
    return folder / "checkpoint.safetensors"


def write(
    entry: Entry, experiment: str, config: Config, state: Records, nodes: dict[int, int]
) -> None:
    """Keep the state after the round of ``entry``; before the journal has that entry."""
    checkpoint = Checkpoint(
        t=entry.round,
        experiment=experiment,
        config=_identity(config),
        entry=entry.line(),
        state=dict(state),
        nodes=nodes,
    )
    write_atomically(path_in(Path(config.run.out)), checkpoint.to_bytes(), private=True)


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
    for each in (theirs["run"], ours["run"]):  # 0: as many as were connected
        each["clients"] = each["clients"] or len(checkpoint.nodes)
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
    """What decides the numbers: the tables that the method reads, without what is free."""
    own = table_of(config.run.method)
    needed = {"run", "data", "train", "score", "wire", own, *config.method.uses}
    tables = {name: section for name, section in config.tables.items() if name in needed}
    falls = any(isinstance(each, Descent) and each.cosine for each in tables.values())
    fixed = {"rounds"} if falls else set()
    dumped = {
        name: section.model_dump(exclude=FREE.get(name, set()) - fixed)
        for name, section in tables.items()
    }
    for k, node in config.nodes.items():
        dumped[f"node.{k}"] = node.model_dump(exclude=FREE["node"], exclude_none=True)
    return json.dumps(dumped, sort_keys=True)
