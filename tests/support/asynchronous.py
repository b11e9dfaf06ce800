"""Tiny runs with asynchronous rounds, on devices of three speeds."""

from pathlib import Path
from typing import Any

from common.settings.config import Value
from tests.support.tiny import TinyRun, flat, play

SPEEDS = {"fast": 1e9, "middle": 1e8, "slow": 2e7}
PROFILES: dict[str, Any] = {"profiles": ",".join(SPEEDS), "mode": "buffered"}
PROFILES |= {f"profile__{name}__flops": flops for name, flops in SPEEDS.items()}
PROFILES |= {f"profile__{name}__network": "lan" for name in SPEEDS}
METHOD: dict[str, Any] = {"method": "fedavg", "fleet": "mlp@0.25", "rounds": 5}
SMALL: dict[str, Any] = {"buffer__size": 2, "buffer__concurrency": 3}


class Killed(BaseException):
    """End of a process."""


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
