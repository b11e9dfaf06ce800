"""The kinds of payloads and files: names that no renaming may change."""

import importlib
import pkgutil
from collections.abc import Iterator

from common.exchange.records import Records
from server_app.tracking.tracker import TRACKERS

KINDS = """
    across: State
    agreement: State
    checkpoint: Checkpoint
    class_table: Down State Up
    composite: Memory
    dafl: State
    depthfl: Down Memory State
    ditto: State
    dl_mh: Schemed Up
    dl_sh: Down Up
    ds_fl: Down State Up
    fd: State
    fedftg: State
    fedgen: Down State Up
    fedgh: State
    fedgkd: Down State
    fedgkt: Down Memory State Up
    fedin: Down State Up
    fedkd: Down Memory State Up
    fedkf: Down Memory State
    fedktl: Down State
    fedmd: Answer Down Learnt Memory Started Up
    fedorion: State Up
    fedssa: State
    fedtgp: State
    fiarse: Down Up
    global_model: Weights
    heterofl: Down State
    hetfedfl: Up
    i_dl_mh: Up
    incentive: Gain Reward Rewarded
    kt_pfl: Coefficients
    lg_fedavg: State
    local: State
    moon: Memory
    oca: State Upload
    partly_shared: State
    predictions: Predictions
    private: Memory
    protocol: Ask Down Envelope FineTunedScore Hello Measure Model Peer Score Statistics
    protocol: ToClient ToServer Trained Up
    public_set: Local
    qffl: Up
    reuse: Learnt
    scaffold: Down Memory State Up
"""
"""Kinds of messages, client states and server states: first word, then the words that follow it.

A client finds its state by the kind, so that a renamed kind would make it start anew.
"""

TRACKER_MODULES = {place.partition(":")[0] for place, _ in TRACKERS.values()}
"""Modules without records that need packages of an extra."""


def record_classes(base: type[Records]) -> Iterator[type[Records]]:
    for kind in base.__subclasses__():
        yield kind
        yield from record_classes(kind)


def test_no_kind_has_changed() -> None:
    for name in ("common", "server_app", "client_app"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module.name not in TRACKER_MODULES:
                importlib.import_module(module.name)
    ours = {
        kind.kind
        for kind in record_classes(Records)
        if kind.__module__.partition(".")[0] in ("common", "server_app", "client_app")
    }
    lines = (line.split(":") for line in KINDS.strip().splitlines())
    assert ours == {f"{first.strip()}.{name}" for first, names in lines for name in names.split()}
