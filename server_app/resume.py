"""Going on from a checkpoint: which one it is, and what is taken up from it."""

from collections import Counter
from pathlib import Path

from pydantic import ValidationError

from common.config import Config, MethodOptions
from common.files import Damaged
from common.journal import Entry, Undone
from common.protocol import Up
from server_app.keep import checkpoint, summary
from server_app.keep.checkpoint import Checkpoint
from server_app.keep.journal import Journal
from server_app.method import Method
from server_app.stopped import Stopped


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
    method: Method[MethodOptions, Up], journal: Journal, saved: Checkpoint
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
