"""Devices of a run's clients by their profiles, and when these are available."""

from functools import cache
from pathlib import Path
from typing import final

from common.settings.config import Config
from common.settings.profiles import Device, device
from server_app.clock.traces import Trace, read_traces


@final
class Devices:
    """The clients' devices. Each profile and each file of traces is read once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.named = cache(lambda name: device(name, config.profiles))
        self._read = cache(lambda path: read_traces(Path(path)))

    def of(self, k: int) -> Device:
        """Return client k's device. Raises ``ValueError``, one line, if it has no profile."""
        if not (name := self.config.profile_of(k)):
            raise ValueError(f"client {k} has no profile: set profiles, or profile in [node.{k}]")
        return self.named(name)

    def trace(self, k: int) -> Trace | None:
        """Return when client k's device is available; None: always.

        Raises ``ValueError``, one line, for a file of traces without one of client k.
        """
        if not (path := self.of(k).available):
            return None
        if (trace := self._read(path).get(k)) is None:
            raise ValueError(f"{path} has no trace of client {k}")
        return trace

    def check(self) -> None:
        """Raise ``ValueError``, one line, for a client without a profile or a trace that it needs.

        Where the nodes know the number of clients, this is found when a round needs it.
        """
        for k in range(self.config.run.clients) if self.config.on_clock else ():
            self.trace(k)
