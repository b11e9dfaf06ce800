"""What a run writes down: its settings, and for each round a checkpoint and the journal's line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from common.config import Config, MethodOptions
from common.files import write_atomically
from common.journal import Entry, Undone
from common.protocol import Up
from common.section import Value
from common.toml import to_toml
from server_app.keep import checkpoint
from server_app.keep.journal import Journal, clock
from server_app.method import Client, Method
from server_app.privacy import withhold
from server_app.track.sink import Sink

log = logging.getLogger("flwr.fedmosaic")


@final
class Record:
    """The files in a run's folder, and the trackers that hear of its rounds.

    ``settings``: the run config as it came.
    """

    def __init__(self, config: Config, sink: Sink, settings: Mapping[str, Value]) -> None:
        self.config, self.sink, self.settings = config, sink, settings
        self.folder = Path(config.run.out)
        self.journal = Journal(self.folder)

    def add_settings(self, experiment: str, clients: int) -> None:
        """Write ``config.toml``: the run config as it came, with what was still open in it."""
        settings = {**self.settings, "out": str(self.folder), "experiment": experiment}
        settings |= {"clients": clients, "resume": False, "from-round": -1}
        write_atomically(self.folder / "config.toml", to_toml(settings).encode())

    def add(
        self,
        entry: Entry,
        experiment: str,
        method: Method[MethodOptions, Up],
        clients: Sequence[Client],
        undone: Sequence[Undone],
    ) -> None:
        """Write the checkpoint after a round, then its line of the journal."""
        withhold(entry, self.config, len(clients))
        with clock(entry, "checkpoint"):
            nodes = {client.k: client.node for client in clients}
            checkpoint.write(entry, experiment, self.config, method.state(), nodes, undone)
        self.journal.append(entry)
        self.sink.tell([entry])
        if entry.round:
            log.info("round %d/%d: %s", entry.round, self.config.run.rounds, _told(entry))


def _told(entry: Entry) -> str:
    """What those hear who follow Flower's log with ``flwr run --stream``."""
    told = ["not scored" if entry.accuracy is None else f"accuracy {entry.accuracy:.4f}"]
    told += [f"{len(entry.failures)} failures"] if entry.failures else []
    told += [] if entry.reached is None else [f"the run ends: target {entry.reached:g} is reached"]
    return ", ".join(told)
