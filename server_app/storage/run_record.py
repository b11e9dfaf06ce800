"""What a run writes down: its settings, each round's checkpoint and line of the journal, and its
summary, also if it fails.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from common.errors import report
from common.exchange.records import Records, StateDict
from common.files import write_atomically
from common.journal import Entry, Undone
from common.settings.config import Config
from common.settings.parse import to_toml
from common.settings.section import Value
from server_app.aggregation.privacy import withhold
from server_app.stopped import Stopped
from server_app.storage import checkpoint, summary
from server_app.storage.journal import Journal, clock
from server_app.storage.relative_paths import to_relative
from server_app.tracking.sink import Sink

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

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Follow a run: the trackers end with it, and if it fails its summary says why.

        Raises ``Stopped`` with that line then.
        """
        with self.sink:
            try:
                yield
            except Exception as error:
                line, folder = report(error, self.folder), self.folder
                if isinstance(error, OSError):
                    line = f"{error.filename or folder} cannot be used: {error.strerror or line}"
                if "--resume" not in line and checkpoint.path_in(folder).exists():
                    line += f"; the checkpoint is kept, go on with --resume {folder}"
                with suppress(OSError, ValueError):  # on a full disk the line is all there is
                    self.add_summary(None, error=line)
                raise Stopped(line) from error

    def add_settings(self, experiment: str, clients: int) -> None:
        """Write ``config.toml``: the run config as it came, with what was still open in it."""
        settings = {**to_relative(self.settings, self.folder), "experiment": experiment}
        settings |= {"clients": clients, "resume": False, "from-round": -1}
        write_atomically(self.folder / "config.toml", to_toml(settings).encode())

    def add(
        self, entry: Entry, state: Callable[[], Records], undone: Sequence[Undone], **more: Any
    ) -> None:
        """Write the checkpoint after a round, then its line of the journal.

        ``state``: returns the method's; ``more``: further fields of the checkpoint.
        """
        withhold(entry, self.config, len(more["nodes"]))
        with clock(entry, "checkpoint"):
            checkpoint.write(self.config, entry, state(), undone, **more)
        self.journal.append(entry)
        if entry.round:
            log.info("round %d/%d: %s", entry.round, self.config.run.rounds, _told(entry))

    def add_summary(self, weights: StateDict | None, error: str = "") -> None:
        """Write ``summary.json``, and the weights if there are any."""
        summary.write(self.folder, self.config, self.journal.entries(), weights, error)


def _told(entry: Entry) -> str:
    """What those hear who follow Flower's log with ``flwr run --stream``."""
    told = ["not scored" if entry.accuracy is None else f"accuracy {entry.accuracy:.4f}"]
    told += [f"{len(entry.failures)} failures"] if entry.failures else []
    told += [] if entry.reached is None else [f"the run ends: target {entry.reached:g} is reached"]
    return ", ".join(told)
