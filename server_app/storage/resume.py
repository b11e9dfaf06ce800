"""Resume from a checkpoint: of a run that ended, or of the round before a diverged one.

A diverged round is repeated once, without the suspects: the clients that stood out in the round
from which the divergence comes.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from common.errors import LONGEST, first_line
from common.exchange.protocol import Reply
from common.files import Damaged
from common.journal import Entry, Failure, Undone
from common.settings.config import Config, MethodOptions
from server_app.messaging import sanity
from server_app.method import Method
from server_app.stopped import CollapsedRound, DivergedRound, Stopped
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

    Return the journal entry of that round, and the rounds that were undone before. Raises
    ``Stopped`` if the checkpoint is of another task, such as one with another tokenizer.
    """
    if saved.task not in ("", task := method.task.fingerprint):
        raise Stopped(
            "the checkpoint is of another task (kind:shape/classes/names/objective), "
            f"{saved.task!r}; that of the data is {task!r}"
        )
    run, folder, last = method.config.run, journal.path.parent, Entry.read(saved.entry)
    try:
        method.restore(saved.state)
    except ValidationError as error:
        raise ValueError(f"the checkpoint's state is not that of {run.method}") from error
    undone = [Undone.model_validate_json(text) for text in saved.undone]
    method.attempts = Counter(attempt.round for attempt in undone)
    try:
        journal.before(last.round)
    except Damaged as error:
        raise Stopped(f"{error}; {checkpoint.advice(folder, len(journal.entries()))}") from error
    if run.from_round >= 0:
        checkpoint.go_back(folder, last.round)
    journal.rewind(last)
    return last, undone


def undo(undone: Undone, past: Sequence[Undone], folder: Path) -> Checkpoint:
    """Go back to the checkpoint before a round, and return it; ``past``: rounds undone before.

    Raises ``ValueError`` if the checkpoint is missing.
    """
    checkpoint.undo(folder, undone, past)
    names, t = ", ".join(map(str, undone.suspects)), undone.round
    log.warning("round %d is undone and repeated without client %s: %s", t, names, undone.why)
    return checkpoint.load(folder)


def plan(
    diverged: DivergedRound,
    config: Config,
    entries: Sequence[Entry],
    architectures: Mapping[int, str],
    past: Sequence[Undone],
    guess: float,
) -> Undone:
    """Return which round to repeat without which clients after ``diverged``.

    ``entries``: those of the journal and of the diverged round; ``architectures``: by client;
    ``past``: rounds undone before; ``guess``: the loss of an untrained model. Raises ``diverged``,
    with the suspects in its line, if the round was undone before, if there is no suspect or no
    other client, or if the checkpoint is missing. It also does so under differential privacy: the
    model after the round may have been sent to clients, and ε counts each round once.
    """
    t = diverged.t
    if config.privacy.on:
        raise diverged
    source, suspects = _source(diverged, entries, architectures, past, guess)
    if not suspects:
        raise diverged
    named = " and ".join(f"client {k} with {why}" for k, why in suspects.items())
    where = "" if source == t else f"in round {source} "
    diverged = diverged.with_line(f"{diverged}; {where}{named} stood out")
    oldest = min([*checkpoint.older(Path(config.run.out)), entries[-1].round - 1])
    first = max(source, 1 + max(oldest, _last_undone(past, t)))
    if first > t or excluded(past, first) | suspects.keys() >= architectures.keys():
        raise diverged
    once = isinstance(diverged, CollapsedRound)
    return Undone(round=first, why=str(diverged), suspects=[*suspects], once=once)


def _source(
    diverged: DivergedRound,
    entries: Sequence[Entry],
    architectures: Mapping[int, str],
    past: Sequence[Undone],
    guess: float,
) -> tuple[int, dict[int, str]]:
    """Return the round from which a divergence comes, and the clients that stand out in it.

    A poisoned update may show one round later, and an attack in every round ruins the model over
    several rounds. After the first of them, honest clients may stand out too, since they train from
    a useless model. The source is therefore the first round with a client that stands out after the
    last sound round, in which the loss was at most ``guess``, and not before the last repeated one.
    The source of a collapsed accuracy is the round itself.
    """
    t = diverged.t
    sound = [e.round for e in entries if e.round < t and e.loss is not None and e.loss <= guess]
    start = max(max(sound, default=t - 1) + 1, _last_undone(past, t))
    start = t if isinstance(diverged, CollapsedRound) else start
    for entry in entries:
        if start <= entry.round <= t and (suspects := sanity.suspects(entry, architectures)):
            return entry.round, suspects
    return t, {}


def _last_undone(past: Sequence[Undone], t: int) -> int:
    """Return the last round up to t that was undone; 0 if none was."""
    return max((attempt.round for attempt in past if attempt.round <= t), default=0)


def excluded(past: Sequence[Undone], t: int) -> frozenset[int]:
    """Return the clients that are not selected in round t."""
    attempts = [attempt for attempt in past if attempt.round == t or not attempt.once]
    return frozenset(k for attempt in attempts for k in attempt.suspects)


def note(entry: Entry, past: Sequence[Undone]) -> None:
    """Add to a repeated round's entry its undone attempts, and a failure for each suspect."""
    if not (attempts := [attempt for attempt in past if attempt.round == entry.round]):
        return
    entry.undone = attempts
    why = "its update stood out when the round was undone"
    entry.failures = [
        Failure(
            k=k,
            round=entry.round,
            kind="left out",
            reason=first_line(
                f"left out {'once' if attempt.once else 'from now on'}, {why}: {attempt.why}",
                LONGEST,
            ),
        )
        for attempt in attempts
        for k in attempt.suspects
    ] + entry.failures
