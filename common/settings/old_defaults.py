"""Defaults that have changed, each with the value that it had before.

Records and fingerprints leave out keys with the old default, so that recorded cells stay valid. A
run's folder or a checkpoint that lacks a key is read with the old default. The test data
``tests/run/old_defaults.json`` has the first default of every key; a test compares this list to it.
"""

from collections.abc import Mapping

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
