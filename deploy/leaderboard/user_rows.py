"""Rows that a user adds to the leaderboard: the check that their runs follow the protocol."""

import itertools
from collections.abc import Iterable
from pathlib import Path

from common.keys import SHARED_FIELDS, marked
from common.parse import defaults, reads
from common.settings.marks import Mark
from common.settings.section import Value
from deploy import user_modules
from deploy.leaderboard.board import MEASURES, Board, scored
from deploy.leaderboard.board import record as bundled
from deploy.leaderboard.protocol import COSTS, Place, Protocol, Row
from deploy.run.verify import verify
from deploy.settings import load_run
from deploy.study import records
from deploy.study.records import Flat, Recorded

COMMON = {
    key
    for key in SHARED_FIELDS
    if key.rpartition(".")[0] in ("", "data", "train", "score", "finetune")
}
"""Settings of the tables that the protocol fixes for all methods, with few exceptions."""
CHOSEN = {*marked(Mark.CHOSEN)}
FIXED = COMMON - CHOSEN - {*marked(Mark.MACHINE, Mark.FREE)}


def add(board: Board, folders: Iterable[Path], name: str, sends: str) -> Place:
    """Add the runs of a user's method as a row, after checking that they follow the protocol.

    ``name``: the row's; empty: the runs' name, else their method. ``sends``: what leaves a client;
    empty: as in the row, if it exists. A run that is missing leaves the row incomplete, so more
    runs can be added later.

    Raises ``ValueError``, one line, for a run that is incomplete, damaged or different from the
    protocol, for a second run of the same cell, and for runs of different configurations.
    """
    found = list[tuple[Path, Flat, str, list[str], str, int]]()
    by_cell = dict[tuple[str, int], Path]()
    for folder in folders:
        flat = _whole(folder)
        found.append((folder, flat, *_match(board.protocol, folder, flat)))
        other = by_cell.setdefault(found[-1][-2:], folder)
        if other != folder:
            raise ValueError(f"{folder} and {other} are runs of the same cell; give one of them")
    if not found:
        raise ValueError("--add needs the folder of at least one run")
    first_folder, first, fleet, kinds, _, _ = found[0]
    own = _own(board.protocol, first)
    for folder, flat, other_fleet, other_kinds, _, _ in found:
        if (other_fleet, other_kinds, _own(board.protocol, flat)) != (fleet, kinds, own):
            raise ValueError(f"{folder} has another configuration than {first_folder}")
    name = name or str(first.get("name") or first["method"])
    if name != name.strip() or not name.isprintable():
        raise ValueError(f"--name {name!r} is not allowed; it should be one line of text")
    known = next((place for place in board.places if place.name == name), None)
    sends = sends or (known.row.sends if known else "")
    row = Row(name=name, fleets=[fleet], kinds=kinds, sends=sends, set=own)
    if known and (not known.added or known.row != row):
        raise ValueError(f"the leaderboard has another row {name!r}; give another: --name NAME")
    place = Place(row, fleet, added=True)
    board.places = [one for one in board.places if one.name != name] + [place]
    copies = board.folder / user_modules.COPIES
    user_modules.UserModules.of(first).copy(copies)
    user_modules.look_in(copies, row.set)
    cells = {(c.column, c.seed): c for c in scored(board, [name])}
    known_runs = {**records.read(bundled(board.protocol)), **records.read(board.folder)}
    new = list[Recorded]()
    for folder, _, _, _, column_name, seed in found:
        record = Recorded.of(cells[column_name, seed].flat, folder)
        assert record is not None
        known_run = known_runs.get(record.fingerprint, record)
        if _numbers(known_run, known_run) != _numbers(record, known_run):
            raise ValueError(
                f"{folder}: the leaderboard has another run of {column_name}, seed {seed}, of this "
                "row; give another: --name NAME"
            )
        new.append(record)
    records.append(board.folder, *new)
    board.save()
    return place


def _numbers(run: Recorded, known: Recorded) -> list[object]:
    """Return the numbers of a run that the ``known`` one, maybe of a bundled record, has too."""
    curves = [run.curve.get(name) for name in known.curve]
    return [run.settings, *map(run.measured, MEASURES), *curves]


def _whole(folder: Path) -> Flat:
    """Return the settings of a run, after checking that it is complete and undamaged."""
    summary = records.completed(folder)
    if summary is None:
        raise ValueError(f"{folder} holds no finished run")
    if damaged := [one for one in verify(folder) if one.state == "damaged"]:
        raise ValueError(f"{damaged[0].path} is damaged: {damaged[0].detail}")
    flat = load_run(folder)
    if summary["rounds"] != flat["rounds"]:
        raise ValueError(f"{folder} ended after {summary['rounds']} of {flat['rounds']} rounds")
    return flat


def _match(protocol: Protocol, folder: Path, flat: Flat) -> tuple[str, list[str], str, int]:
    """Return the fleet, kinds, column and seed whose settings a run has.

    Raises ``ValueError`` with the settings that differ from the nearest column, and its name.
    """
    seed, nearest, where = int(flat["seed"]), dict[str, tuple[Value, Value]](), ""
    columns = {**protocol.columns, COSTS: protocol.cost_settings}
    sizes = range(len(protocol.kind) + 1)
    kinds = [list(some) for n in sizes for some in itertools.combinations(protocol.kind, n)]
    for fleet, some, (name, settings) in itertools.product(protocol.fleet, kinds, columns.items()):
        wanted = {**defaults(), **protocol.base, **protocol.fleet[fleet].set}
        for kind in some:
            wanted |= protocol.kind[kind].set
        wanted |= settings
        differs = {
            key: (flat[key], value)
            for key, value in wanted.items()
            if key in FIXED and flat.get(key) != value
        }
        seeds = protocol.own_seeds(settings) or protocol.seeds
        seeds = seeds[:1] if name == COSTS else seeds
        if seed not in seeds:
            differs["seed"] = (seed, f"one of {', '.join(map(str, seeds))}")
        if not differs:
            return fleet, some, name, seed
        if not nearest or len(differs) < len(nearest):
            nearest, where = differs, ", ".join((fleet, *some, name))
    wrong = ", ".join(
        f"{key} = {own} instead of {'nothing' if value == '' else value}"
        for key, (own, value) in nearest.items()
    )
    raise ValueError(f"{folder} does not follow the protocol: {wrong} (nearest: {where})")


def _own(protocol: Protocol, flat: Flat) -> Flat:
    """Return the settings of a run that its method chooses and that differ from the board's."""
    method = str(flat["method"])
    usual = {**defaults(method), **protocol.base}
    return {
        key: value
        for key, value in sorted(flat.items())
        if value != usual.get(key) and (key in CHOSEN or key not in COMMON) and reads(method, key)
    }
