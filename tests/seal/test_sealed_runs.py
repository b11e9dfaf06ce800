"""Whole runs with sealed messages, over relays and registered clients that lie; in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from common.config import Value
from deploy.machines.certificates import Certificates, make
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.tiny import TinyRun, flat, play

CLIENTS = 3


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("sealed") / "certs", [], CLIENTS)


def settings(out: Path, **changes: Any) -> dict[str, Value]:
    given = {"method": "fedavg", "clients": CLIENTS, "fleet": "mlp@0.25", "min_replies": 0.5}
    return flat(out, **{**given, **changes})


class Relay(Loopback):  # type: ignore[misc]
    """A SuperLink between a ServerApp and clients that have keys. Honest, unless a subclass is not.

    ``down`` and ``up`` may return another message, or none; each message is handed in as it came.
    """

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        super().__init__(int(config["clients"]), config, workers=0)
        for node, of in self._nodes.items():
            k = of["partition-id"]
            self._nodes[node] = {**of, "key": str(keys.key(int(k))), "ca": str(keys.ca)}
        self.seen: list[Message] = []

    def down(self, message: Message) -> Message | None:
        return message

    def up(self, reply: Message, question: Message) -> Message | None:
        return reply

    def _push(self, message: Message) -> str:
        self.seen.append(message)
        passed = self.down(message)
        return super()._push(message if passed is None else passed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = dict(self._questions)
        replies = list(super().pull_messages(list(message_ids)))
        passed = (self.up(reply, asked[reply.metadata.reply_to_message_id]) for reply in replies)
        return [reply for reply in passed if reply is not None]


def sealed_run(
    out: Path, keys: Certificates, relay: Callable[..., Relay] = Relay, **changes: Any
) -> TinyRun:
    config = settings(out, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMOSAIC_TRUST", str(keys.folder))
        return play(config, relay(config, keys))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return play(settings(tmp_path_factory.mktemp("plain") / "out"))


def test_sealed_messages_give_the_same_bits(
    tmp_path: Path, keys: Certificates, plain: TinyRun
) -> None:
    sealed = sealed_run(tmp_path / "out", keys)
    assert sealed.weights == plain.weights
    for ours, theirs in zip(sealed.journal, plain.journal, strict=True):
        assert {**ours, "seconds": 0, "bytes": 0, "cost": 0} == {
            **theirs,
            "seconds": 0,
            "bytes": 0,
            "cost": 0,
        }
