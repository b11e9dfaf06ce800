"""Defaults that have changed, each with the value that it had before.

Records and fingerprints leave out keys with the old default, so that recorded cells stay valid. The
test data ``tests/run/old_defaults.json`` has the first default of every key; a test compares this
list to it. A run's folder or a checkpoint that lacks such a key is refused, but for ``BEFORE``.
"""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from common.settings.section import Value

OLD_DEFAULTS: Mapping[str, Value] = {
    "noise.epochs": 5,
    "noise.batches": 200,
    "generator.width": 128,
    "dafl.server-steps": 500,
    **{f"{name}.epochs": 200 for name in ("co-boosting", "dense")},
    **{f"{name}.generator-steps": 30 for name in ("co-boosting", "dense")},
    **{f"{name}.width": 128 for name in ("co-boosting", "dense")},
    "co-boosting.generated": 128,
    "dense.generated": 256,
    "fedmd.first-epochs": 25,
    "scaffold.divisor": "effective",
}
"""Key to its first default. Add a key when its default changes; never change or remove an entry."""

BEFORE: Mapping[str, Value] = {"data.images": "stored", "data.validation-from": "any"}
"""Key to its value in a run that was made before the key existed. Unlike the keys above, few runs
depend on them, so a run's folder without them resumes with these values."""


def check_complete(keys: Container[str], wanted: Iterable[str], source: Path) -> None:
    """Raise ``ValueError`` if ``keys`` of a run's file lack one that had another default once."""
    for key in wanted:
        if key in OLD_DEFAULTS and key not in keys:
            raise ValueError(
                f"{source} lacks {key}, whose default has changed since: it is of an earlier "
                "version, which has to resume the run"
            )
