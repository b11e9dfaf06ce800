"""What a run leaves that cannot go on: a summary that says why, and one line for its user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.config import Config
from server_app.keep import checkpoint, summary
from server_app.keep.journal import Journal
from server_app.stopped import Stopped


@contextmanager
def summarized(config: Config, journal: Journal) -> Iterator[None]:
    """Write the run's summary if the block fails; raises ``Stopped`` with its line then."""
    folder = Path(config.run.out)
    try:
        yield
    except (Stopped, ValueError, FloatingPointError, OSError) as error:
        line = str(error).partition("\n")[0]
        if isinstance(error, OSError):
            line = f"{error.filename or folder} cannot be used: {error.strerror or line}"
        if "--resume" not in line and checkpoint.path_in(folder).exists():
            line += f"; the checkpoint is kept, go on with --resume {folder}"
        with suppress(OSError, ValueError):  # on a full disk the line is all there is
            summary.write(folder, config, journal.entries(), None, error=line)
        raise Stopped(line) from error
