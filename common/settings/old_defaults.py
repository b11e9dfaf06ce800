"""Defaults that have changed, each with the value that it had before.

The defaults of the commit at which recorded cells, experiments and checkpoints began to need a
reference are frozen: ``tests/support/old_defaults.json`` has them all, and a test checks that this
list contains every one that differs today. A record leaves out keys with the frozen default, and a
run's folder that lacks a key was made with it.
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
}
"""Key to its old default. Add a key when its default changes; never change or remove an entry."""
