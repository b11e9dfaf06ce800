"""Going on from a checkpoint: that of a run that ended, or the one before a round that left a
useless model, which is repeated without the suspects, once.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from common.errors import LONGEST, first_line
from common.exchange.protocol import Reply
from common.files import Damaged
from common.journal import Entry, Failure, Undone
from common.settings.config import Config, MethodOptions
from server_app.method import Client, Method
from server_app.stopped import DivergedRound, Stopped
from server_app.storage import checkpoint, summary
from server_app.storage.checkpoint import Checkpoint
from server_app.storage.journal import Journal

log = logging.getLogger("flwr.fedmosaic")


def newest(config: Config) -> Checkpoint:
    """The checkpoint to go on from; raises ``Stopped`` if there is none, or all rounds are done."""
    folder = Path(config.run.out)
    try:
        saved = checkpoint.read(folder, config)
        summary.check_incomplete(folder, config)
    except ValueError as error:
        raise Stopped(str(error)) from error
    return saved


def restore(
    method: Method[MethodOptions, Reply], journal: Journal, saved: Checkpoint
) -> tuple[Entry, list[Undone]]:
    """Set the method's state, and make the checkpoint's round the journal's last; returns its entry
    and the rounds that were undone before.
    """
    run, folder, last = method.config.run, journal.path.parent, Entry.read(saved.entry)
    try:
        method.restore(saved.state)
    except ValidationError as error:
        raise ValueError(f"the checkpoint's state is not that of {run.method}") from error
    undone = [Undone.model_validate_json(each) for each in saved.undone]
    method.excluded = frozenset(k for each in undone for k in each.suspects)
    method.attempts = Counter(each.round for each in undone)
    try:
        journal.before(last.round)
    except Damaged as error:
        raise Stopped(f"{error}; {checkpoint.advice(folder, len(journal.entries()))}") from error
    if run.from_round >= 0:
        checkpoint.go_back(folder, last.round)
    journal.rewind(last)
    return last, undone


def undo(
    absurd: DivergedRound, config: Config, trusted: Iterable[Client], past: Sequence[Undone]
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
