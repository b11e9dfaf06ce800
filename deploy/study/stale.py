"""Which recorded tables are stale: whose canaries give another digest now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.study import canary, paper_table
from deploy.study.canary import Launch


def check(
    tables: Sequence[str], records: Path, launch: Launch, tell: Callable[[str], None]
) -> dict[str, str]:
    """What has changed, by table; ``tell`` hears of each table what was found.

    A table without canaries, or with those of another torch or processor, is said to be so and is
    not called stale.
    """
    found = {}
    for table in tables:
        recorded = canary.load(records / table)
        mine = canary.made_here(recorded)
        if not recorded:
            tell(f"{table}: recorded without canaries, so nothing can be said")
        elif mine is None:
            places = " and ".join(one.where for one in recorded)
            tell(f"{table}: recorded with {places}, here is {canary.here()}")
        else:
            file = paper_table.read(Path(table))
            now = canary.run(file, launch, tell, mine.rounds)
            if methods := canary.changed(mine, now):
                found[table] = ", ".join(methods)
            tell(f"{table}: {'stale: ' + found[table] if methods else 'as recorded'}")
    return found
