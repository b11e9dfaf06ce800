"""Resume from a checkpoint: of a run that ended, or of the round before a diverged one.

A diverged round is repeated once, without the suspects.
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
    """Return the checkpoint to resume from. Raises ``Stopped`` without one or after all rounds."""
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
    """Restore the method's state, and make the checkpoint's round the journal's last.

    Return the journal entry of that round, and the rounds that were undone before.
    """
    run, folder, last = method.config.run, journal.path.parent, Entry.read(saved.entry)
    try:
        method.restore(saved.state)
    except ValidationError as error:
        raise ValueError(f"the checkpoint's state is not that of {run.method}") from error
    undone = [Undone.model_validate_json(text) for text in saved.undone]
    method.excluded = frozenset(k for attempt in undone for k in attempt.suspects)
    method.attempts = Counter(attempt.round for attempt in undone)
    try:
        journal.before(last.round)
    except Damaged as error:
        raise Stopped(f"{error}; {checkpoint.advice(folder, len(journal.entries()))}") from error
    if run.from_round >= 0:
        checkpoint.go_back(folder, last.round)
    journal.rewind(last)
    return last, undone


def undo(
    diverged: DivergedRound, config: Config, trusted: Iterable[Client], past: Sequence[Undone]
) -> Checkpoint:
    """Go back to the checkpoint before a round and return it; ``past``: rounds undone before.

    Raises ``diverged`` if the round was undone before, if there is no suspect or no other trusted
    client, or if the checkpoint is missing. It also does so under differential privacy: the model
    after the round may have been sent to clients, and ε counts each round once.
    """
    suspects, folder = diverged.suspects, Path(config.run.out)
    repeated = any(attempt.round == diverged.t for attempt in past)
    remaining = any(client.k not in suspects for client in trusted)
    if config.privacy.on or repeated or not suspects or not remaining:
        raise diverged
    try:
        checkpoint.undo(folder, Undone(round=diverged.t, why=str(diverged), suspects=suspects))
    except ValueError as error:
        log.warning("round %d cannot be undone: %s", diverged.t, error)
        raise diverged from error
    names, t = ", ".join(map(str, suspects)), diverged.t
    log.warning("round %d is undone and repeated without client %s: %s", t, names, diverged)
    return checkpoint.load(folder)


def note(entry: Entry, past: Sequence[Undone]) -> None:
    """Add to a repeated round's entry its undone attempts, and a failure for each suspect."""
    if not (attempts := [attempt for attempt in past if attempt.round == entry.round]):
        return
    excluded = "left out from now on, its numbers were far out when the round was undone"
    entry.undone = attempts
    entry.failures = [
        Failure(k=k, round=entry.round, reason=first_line(f"{excluded}: {attempt.why}", LONGEST))
        for attempt in attempts
        for k in attempt.suspects
    ] + entry.failures
