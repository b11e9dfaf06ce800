"""A loopback whose nodes come and go."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Message

from deploy.run.loopback import Loopback
from server_app.messaging.membership import Membership
from tests.support.battery import failed
from tests.support.tiny import TinyRun, play


def changes(run: TinyRun) -> list[tuple[int, int, str]]:
    """Return round, client and kind of the journal's events."""
    return [(e["round"], c["k"], c["kind"]) for e in run.journal for c in e.get("events", [])]


class Coming(Loopback):  # type: ignore[misc]
    """Loopback whose nodes are ``away`` in some rounds, by client: they answer nothing then."""

    away: dict[int, Iterable[int]] = {}
    t = 1  #: round that is played, or that begins

    @classmethod
    def of(cls, away: dict[int, Iterable[int]], t: int = 1) -> type["Coming"]:
        return type("Grid", (cls,), {"away": away, "t": t})

    def get_node_ids(self) -> Iterable[int]:
        away = {k + 1 for k, rounds in self.away.items() if self.t in rounds}
        return [node for node in super().get_node_ids() if node not in away]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        here = set(self.get_node_ids())
        for reply in super().pull_messages(list(message_ids)):
            about = reply.metadata
            gone = failed(reply, 5, "Error: Node Unavailable")
            yield reply if about.src_node_id in here else gone


def played_by(settings: dict[str, Any], grid: type[Coming]) -> TinyRun:
    """Play a run whose grid is told each round's number when the round begins."""
    config = dict(settings)
    with grid(int(config["clients"]), config, workers=0) as own:
        honest = Membership.renew

        def renew(self: Membership, t: int, admit: Callable[..., None]) -> Any:
            own.t = t
            return honest(self, t, admit)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Membership, "renew", renew)
            return play(config, own)
