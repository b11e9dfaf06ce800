"""How many bytes a client receives and sends in a round, method by method, as recorded."""

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from common.methods import names
from common.settings.parse import defaults
from deploy.run import launch, preflight
from deploy.run.settings import numbers
from tests.bench.runs import FASHION

CLIENTS = 4
#: small enough to compute; none of it changes the size of a message but model, images and classes
WORK = {**FASHION, "clients": CLIENTS, "rounds": 3, "data.samples": 1000, "data.test-samples": 100}
FEW = {
    "noise.epochs": 1,
    "noise.batches": 2,
    "co-boosting.epochs": 1,
    "confidence.epochs": 1,
    "ensemble.epochs": 1,
    "ensemble.uhc-steps": 2,
    "public.epochs": 1,
    "dafl.server-steps": 2,
    "dense.epochs": 1,
    "dense.generator-steps": 2,
    "co-boosting.generator-steps": 2,
    "kt-pfl.first-epochs": 1,
    "fedftg.iterations": 1,
    "fedftg.student-steps": 1,
    "fedgen.server-steps": 2,
    "fedgkt.server-epochs": 1,
    "i-dl-mh.incentive-epochs": 1,
    "fedmd.first-epochs": 1,
}
OWN: dict[str, dict[str, Any]] = {
    "fedin": {"fleet": "cnn3"},
    "fedgkt": {"fleet": "cnn2", "global-model": "cnn3"},
    "heterofl": {"fleet": "cnn2", "score.bn": "batch"},
    "fedrolex": {"fleet": "cnn2", "score.bn": "batch"},
    "inclusivefl": {"fleet": "cnn3"},
    "depthfl": {"fleet": "cnn3-exits2"},
    **{
        name: {"data.public": 0.5}
        for name in (
            *("dl-sh", "dl-mh", "i-dl-mh", "ds-fl", "fdmeta", "fedmd", "kt-pfl"),
            *("feddf", "fedkemf"),
        )
    },
}


def by_method(chosen: str) -> dict[str, Any]:
    """Bytes of a round for one client, down and up, of ``chosen`` methods (``a,b``, ``all``) in the
    loopback.
    """
    wanted = names() if chosen == "all" else chosen.split(",")
    return {method: of_method(method) for method in wanted}


def of_method(method: str) -> dict[str, Any]:
    """Of the last round but one: after the last, clients score the global model as well."""
    changes = {**WORK, **FEW, "method": method, **OWN.get(method, {})}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        flat, out = preflight.fresh(
            numbers({**defaults(), **changes}), "loopback", Path(folder) / "run"
        )
        launch.launch(flat, out, workers=1, console=Console(quiet=True))
        lines = (out / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    moved = json.loads(lines[-2])["bytes"]
    each = {way: round(moved[way] / CLIENTS) for way in ("down", "up")}
    return {"fleet": changes["fleet"], **each}
