"""Tiny runs with asynchronous rounds, on devices of three speeds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message

from common import methods
from common.settings.config import Value
from common.settings.facts import ASYNCHRONOUS
from deploy.run.loopback import Loopback
from tests.support import battery
from tests.support.scaled import Scaled
from tests.support.tiny import TinyRun, flat, play

SPEEDS = {"fast": 1e9, "middle": 1e8, "slow": 2e7}
PROFILES: dict[str, Any] = {"profiles": ",".join(SPEEDS), "mode": "buffered"}
PROFILES |= {f"profile__{name}__flops": flops for name, flops in SPEEDS.items()}
PROFILES |= {f"profile__{name}__network": "lan" for name in SPEEDS}
METHOD: dict[str, Any] = {"method": "fedavg", "fleet": "mlp@0.25", "rounds": 5}
SMALL: dict[str, Any] = {"buffer__size": 2, "buffer__concurrency": 3}


EQUAL = {"profiles": "fast", "profile__fast__flops": 1e9, "profile__fast__network": "lan"}
RECALIBRATED = ("heterofl", "fiarse", "lwn", "hetfedfl")
GROUPS = {
    group: [name for name in methods.names() if methods.facts(name).asynchronous == group]
    for group in ASYNCHRONOUS
}
"""Methods with asynchronous rounds, by what a step takes."""


class Killed(BaseException):
    """End of a process."""


class Mortal(Loopback):  # type: ignore[misc]
    """Loopback whose process ends with the message for training number ``last``."""

    last = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        type(self).last -= sum(message.metadata.message_type == "train" for message in sent)
        if self.last <= 0 and sent[0].metadata.message_type == "train":
            raise Killed
        return super().push_messages(sent)


class Worse(Scaled):
    """Loopback on which a client ruins the model with one update."""

    factor = -400.0


class Failing(battery.Tampering):  # type: ignore[misc]
    """Loopback on which the replies of client 1 are empty."""

    tamper = staticmethod(battery.lost)


def config(out: Path, **changes: Any) -> dict[str, Value]:
    """Return the settings of a tiny run of four clients, two updates in a step."""
    return flat(out, **{**METHOD, **PROFILES, **SMALL, **changes})


def buffered(out: Path, **changes: Any) -> TinyRun:
    return play(config(out, **changes))


def steps(run: TinyRun) -> list[dict[str, Any]]:
    """Return what the journal says of each step's jobs and updates."""
    return [_step(entry["buffer"]) for entry in run.journal[1:]]


def _step(buffer: dict[str, Any]) -> dict[str, Any]:
    sent = [job for kind, *job in buffer.get("events", []) if kind == "sent"]
    return {"sent": sent, **buffer}


def same(run: TinyRun, other: TinyRun) -> bool:
    return run.timeless == other.timeless and run.weights == other.weights
