"""Checkpoints: the server's state after the last rounds, to resume a run or to go back."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from common.exchange.records import Records
from common.exchange.records.arrays import prove
from common.files import Damaged, write_atomically
from common.journal import Entry, Undone
from common.keys import marks_of
from common.parse import usual
from common.settings.config import OWN, Config
from common.settings.marks import Mark
from common.settings.old_defaults import BEFORE, check_complete
from common.settings.options import Descent
from common.settings.section import Section, Value, kebab
from server_app.storage.relative_paths import relative

Tables = dict[str, dict[str, Any]]


@final
class Checkpoint(Records, kind="checkpoint.Checkpoint"):
    """The method's state after round t, and the configuration of its run."""

    omitted = frozenset({"jobs"})

    t: int
    experiment: str
    config: str
    entry: str
    """The journal's line of round t; after a crash the journal may lack it."""
    state: dict[str, object]
    nodes: dict[int, int] = {}
    """Node id of each client."""
    kept: dict[int, int] = {}
    """Round of each client's newest state, by client; clients without state are left out."""
    roster: dict[int, str] = {}
    """Architecture of each client of the roster; empty: only the clients of ``nodes``."""
    met: list[int] = []
    """Clients that have taken part before and take part no longer."""
    absences: dict[int, int] = {}
    """Rounds in a row before which a client was not connected, by client."""
    undone: list[str] = []
    """The undone rounds, as in the journal (``Undone``, JSON)."""
    task: str = ""
    """Fingerprint of the task, with that of the tokenizer; empty in older checkpoints."""
    jobs: str = ""
    """Jobs in flight of asynchronous rounds (JSON, ``server_app/buffered/rounds.py``)."""
    callbacks: dict[str, str] = {}
    """State of each of the user's callbacks by name (JSON), where there is one."""


def path_in(folder: Path) -> Path:
    """Return the path of the newest checkpoint."""
    return folder / "checkpoint.safetensors"


def older(folder: Path) -> dict[int, Path]:
    """Return the paths of the checkpoints before the newest, by round, ascending."""
    paths = _place(folder, 0).parent.glob("*.safetensors")
    return dict(sorted((int(path.stem), path) for path in paths if path.stem.isdecimal()))


def _place(folder: Path, t: int) -> Path:
    return folder / "checkpoints" / f"{t}.safetensors"


def write(
    config: Config, entry: Entry, state: Records, undone: Sequence[Undone], **more: Any
) -> None:
    """Write the state after the round of ``entry``, before the journal gets that entry.

    The newest ``keep`` checkpoints stay; those of earlier rounds are in ``checkpoints``. ``more``:
    further fields of a ``Checkpoint``.
    """
    folder, t, keep = Path(config.run.out), entry.round, config.run.keep
    rounds = [one.model_dump_json() for one in undone]
    own, line = _identity(config), entry.line()
    checkpoint = Checkpoint(t=t, config=own, entry=line, state=dict(state), undone=rounds, **more)
    newest, before = path_in(folder), _place(folder, t - 1)
    if keep > 1 and newest.exists():  # the newest checkpoint is always of round t - 1
        before.parent.mkdir(exist_ok=True)
        before.unlink(missing_ok=True)
        try:
            os.link(newest, before)
        except OSError:  # a file system without hard links
            shutil.copy2(newest, before)
    write_atomically(newest, checkpoint.pieces(), private=True)
    if config.privacy.hides_times:  # else the files have the times of the rounds
        os.utime(newest, (t, t))  # not equal for all rounds: copies of a folder skip equal times
    for past, path in older(folder).items():
        if past <= t - keep or past >= t:
            path.unlink(missing_ok=True)


def go_back(folder: Path, t: int) -> None:
    """Make the checkpoint of round t the newest; delete later checkpoints and the summary."""
    if (path := _place(folder, t)).exists():
        (folder / "summary.json").unlink(missing_ok=True)
        os.replace(path, path_in(folder))
    for past, path in older(folder).items():
        if past >= t:
            path.unlink(missing_ok=True)


def undo(folder: Path, undone: Undone, past: Sequence[Undone]) -> None:
    """Go back to the checkpoint before a round, and write all undone rounds to that checkpoint.

    ``past``: the rounds undone before; an older checkpoint may lack the last of them. Raises
    ``ValueError`` if that checkpoint is missing.
    """
    saved = load(folder, undone.round - 1)
    go_back(folder, saved.t)
    rounds = [attempt.model_dump_json() for attempt in (*past, undone)]
    after = saved.model_copy(update={"undone": rounds})
    write_atomically(path_in(folder), after.pieces(), private=True)


def advice(folder: Path, most: int | None = None) -> str:
    """Return the remedy if the newest state is lost, or all states of rounds after ``most``."""
    for t, path in reversed(older(folder).items()):
        with contextlib.suppress(OSError, ValueError):
            if most is None or t <= most:
                prove(path)
                return f"go back to round {t}: fedmosaic run --resume {folder} --from-round {t}"
    return "no earlier checkpoint is kept, so --resume cannot go on: start the run anew"


def load(folder: Path, t: int = -1) -> Checkpoint:
    """Return the checkpoint of round t, or the newest for t = -1.

    Raises ``ValueError``, one line, if there is none; ``Damaged``, with the remedy, if it is.
    """
    path, past = path_in(folder), older(folder)
    if not path.exists() and not past:
        raise ValueError(f"{folder} has no checkpoint to resume from")
    path = past.get(t, path)
    try:
        checkpoint = Checkpoint.load(path)
    except Damaged as error:
        raise Damaged(f"{error}; {advice(folder, t - 1 if t in past else None)}") from error
    if t not in (-1, checkpoint.t):
        kept = ", ".join(str(one) for one in [*past, checkpoint.t])
        raise ValueError(f"from-round = {t}: {folder} has no checkpoint of it; kept are {kept}")
    return checkpoint


def read(folder: Path, config: Config) -> Checkpoint:
    """Return the checkpoint in ``folder`` from which a run resumes.

    Raises ``ValueError``, one line: it is missing, damaged, lacks a key whose default has changed,
    or is of another configuration (with the first differing key and both values).
    """
    checkpoint = load(folder, config.run.from_round)
    path = path_in(folder)
    try:
        saved = _located(json.loads(checkpoint.config), Path(config.run.out))
        method = saved["run"]["method"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path} cannot be read: its configuration is damaged") from None
    current = json.loads(_identity(config))
    if method != (wanted := current["run"]["method"]):
        raise ValueError(f"{path} was written with method = {method!r}, this run has {wanted!r}")
    size = len(checkpoint.roster or checkpoint.nodes)
    for run in (saved["run"], current["run"]):  # 0: all clients that were connected
        run["clients"] = run["clients"] or size
    if config.data.partition == OWN and not config.privacy.on and config.run.clients > size:
        saved["run"]["clients"] = config.run.clients  # further clients bring their own data
    for table in sorted(saved.keys() | current.keys()):
        b = current.get(table, {})
        a = {**_usual(config, table, b.keys() - saved.get(table, {}).keys(), path)}
        a |= saved.get(table, {})
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                name = key if table == "run" else f"{table}.{key}"
                raise ValueError(
                    f"{path} was written with {name.replace('_', '-')} = {a.get(key)!r}, "
                    f"this run has {b.get(key)!r}"
                )
    return checkpoint


def _identity(config: Config) -> str:
    """Return as JSON the settings that decide the results: all that the method reads but those that
    a resumed run may change (``Mark.FREE``)."""
    cosine = any(isinstance(one, Descent) and one.cosine for one in config.read.values())
    free = {Mark.FREE} if cosine else {Mark.FREE, Mark.FREE_WITHOUT_COSINE}

    def decisive(section: Section) -> dict[str, Any]:
        fields = type(section).model_fields.items()
        skipped = {name for name, field in fields if not free.isdisjoint(marks_of(field))}
        return section.model_dump(exclude=skipped)

    dumped = {name: decisive(section) for name, section in config.read.items()}
    for name, section in config.named.items():
        dumped[name] = {n: value for n, value in decisive(section).items() if value is not None}
    return json.dumps(_located(dumped, Path(config.run.out)), sort_keys=True)


def _usual(config: Config, table: str, lacking: Iterable[str], path: Path) -> dict[str, Value]:
    """Return the defaults of keys that a checkpoint lacks because they are newer.

    Empty for the table of a single client. Raises ``ValueError`` as ``check_complete``.
    """
    if table not in config.tables:
        return {}
    fields, prefix = type(config.tables[table]).model_fields, "" if table == "run" else f"{table}."
    names = {key: prefix + kebab(key) for key in lacking}
    check_complete((), names.values(), path)
    return {
        key: BEFORE.get(name, usual(name, fields[key], config.method.auto))
        for key, name in names.items()
    }


def _located(tables: Tables, folder: Path) -> Tables:
    """Return the tables with paths inside ``folder`` relative to it."""
    return {
        name: {k: relative(v, folder) if isinstance(v, str) else v for k, v in table.items()}
        for name, table in tables.items()
    }
