"""status.json: what the server does now, and when it last saw each client's node.

The journal has finished rounds only. No result depends on this file. It has nothing that depends on
data or replies, so that a private run has it too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, final

from common.journal import JsonObject

if TYPE_CHECKING:  # who only reads the file needs neither gRPC nor torch
    from flwr.serverapp import Grid

    from server_app.method import Client

NAME = "status.json"
PAUSE = 10.0  #: least seconds between two looks at the list of nodes
MOST = 1000  #: clients of a federation with entries of their own: more take longer than a phase


@final
class NodeStatus(JsonObject):
    """The node of a client. ``seen``: Unix time at which it was last connected; 0: never."""

    node: int
    name: str = ""
    version: str = ""
    seen: float = 0.0
    online: bool = False


@final
class ServerStatus(JsonObject):
    """The ``phase`` of a round that the server works on, and the clients' nodes by k."""

    round: int = 0
    phase: str = ""
    nodes: dict[int, NodeStatus] = {}

    @classmethod
    def read(cls, folder: Path) -> ServerStatus:
        """Return the status in a run's folder; an empty one if it is missing or damaged."""
        try:
            return cls.model_validate_json((folder / NAME).read_bytes())
        except (OSError, ValueError):
            return cls()


@final
class StatusFile:
    """The status of a run that is going on, written at the beginning of every phase."""

    def __init__(
        self,
        folder: Path,
        grid: Grid,
        known: Callable[[], Mapping[int, Client]],
        *,
        timed: bool = True,
    ) -> None:
        """``known``: returns the clients of the roster that have ever been connected, by k.

        ``timed``: whether the file keeps the time of its last change.
        """
        self._timed = timed
        self._folder, self._grid, self._known = folder, grid, known
        self._status, self._due = ServerStatus.read(folder), 0.0

    def enter(self, t: int, phase: str) -> None:
        """Write that the server begins a phase of round t."""
        self._status.round, self._status.phase = t, phase
        self._look()
        self._write()

    def renew(self) -> None:
        """Write which nodes are connected, if the last look was some time ago."""
        if self._look():
            self._write()

    def _look(self) -> bool:
        """Look which nodes are connected, and return whether it was time to do so."""
        import grpc

        known = self._known()
        if not 0 < len(known) <= MOST or time.monotonic() < self._due:
            return False
        with contextlib.suppress(grpc.RpcError):  # the next exchange reports a lost SuperLink
            online, now = set(self._grid.get_node_ids()), round(time.time(), 1)
            before, nodes = self._status.nodes, dict[int, NodeStatus]()
            for k, client in sorted(known.items()):
                info, here = client.info, client.node in online
                seen = now if here else before[k].seen if k in before else 0.0
                nodes[k] = NodeStatus(
                    node=client.node, name=info.name, version=info.version, seen=seen, online=here
                )
            self._status.nodes = nodes
            self._due = time.monotonic() + PAUSE
        return True

    def _write(self) -> None:
        """Replace the file without waiting for the disk: its content is of this moment only."""
        with contextlib.suppress(OSError):
            temporary = self._folder / f".{NAME}.{os.getpid()}"
            temporary.write_text(self._status.model_dump_json())
            if not self._timed:
                os.utime(temporary, (0, 0))
            os.replace(temporary, self._folder / NAME)
