"""Undoing a round that left a useless model: it is played again without the suspects, once."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.config import Config
from common.errors import LONGEST, first_line
from common.journal import Entry, Failure, Undone
from server_app.keep import checkpoint
from server_app.keep.checkpoint import Checkpoint
from server_app.method import Client
from server_app.stopped import Absurd

log = logging.getLogger("flwr.fedmosaic")


def undo(
    absurd: Absurd, config: Config, trusted: Iterable[Client], past: Sequence[Undone]
) -> Checkpoint:
    """Go back to the checkpoint before a round, and return it; ``past``: what was undone before.

    Raises ``absurd`` if the round was undone before, nobody is suspect or left without the
    suspects, or the checkpoint is not kept; and under differential privacy: the model after the
    round may have been sent to clients, and ε counts each round once.
    """
    out, folder = absurd.suspects, Path(config.run.out)
    again = any(each.round == absurd.t for each in past)
    left = any(client.k not in out for client in trusted)
    if config.privacy.on or again or not out or not left:
        raise absurd
    try:
        checkpoint.undo(folder, Undone(round=absurd.t, why=str(absurd), suspects=out))
    except ValueError as error:
        log.warning("round %d cannot be undone: %s", absurd.t, error)
        raise absurd from error
    who = ", ".join(map(str, out))
    log.warning("round %d is undone and repeated without client %s: %s", absurd.t, who, absurd)
    return checkpoint.load(folder)


def note(entry: Entry, past: Sequence[Undone]) -> None:
    """Write down in a repeated round's entry that it was undone, and who is left out since."""
    if not (again := [each for each in past if each.round == entry.round]):
        return
    said = "left out from now on, its numbers were far out when the round was undone"
    out = [(k, first_line(f"{said}: {each.why}", LONGEST)) for each in again for k in each.suspects]
    entry.undone = again
    entry.failures = [
        Failure(k=k, round=entry.round, reason=why) for k, why in out
    ] + entry.failures
