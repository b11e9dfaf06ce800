"""The payloads every method shares: who is there (Hello, Peer), how good they are (Ask, Score).

A method's own messages are subclasses of ``Down`` (server to client) and ``Up`` (client to server).
Identity travels in the payload: the partition id k, never the runtime's node id.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import Field

from common.records import Records, StateDict

ClientId = Annotated[int, Field(ge=0, lt=2**31)]
Round = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
"""Finite, and so far from overflow that means of them are finite too."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9@._-]{1,100}$")]
Experiment = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Clients keep their state in a folder of this name, so it can name no other folder."""
MAX_CLASSES = 100_000


class Down(Records):
    """From the server to one client in round t."""

    experiment: Experiment
    t: Round


class Up(Records):
    """From client k to the server, answering the ``Down`` of round t."""

    experiment: Experiment
    t: Round
    k: ClientId
    metrics: Annotated[dict[Name, Number], Field(max_length=50)]
    """Scalars for the journal, such as the mean training loss."""


class Hello(Records):
    """Round 0: who are you? ``clients`` is the federation's size, known to the server."""

    experiment: Experiment
    clients: Count


class Peer(Records):
    """A client's answer to ``Hello``."""

    experiment: Experiment
    k: ClientId
    n: Annotated[int, Field(ge=1, lt=2**40)]
    """Local training samples."""
    n_test: Count
    """Local test samples."""
    model: Name
    """Architecture, for example ``resnet18@0.5``."""
    classes: Annotated[list[Count], Field(max_length=MAX_CLASSES)]
    """Class ids with at least one training sample, ascending."""
    counts: Annotated[list[Count], Field(max_length=MAX_CLASSES)] | None
    """Training samples of each class; None unless ``share-counts``."""
    task: Annotated[str, Field(max_length=100)]
    """Input shape and fingerprint of the class names, the same at every client."""
    public: Annotated[str, Field(max_length=100)]
    """Fingerprint of the public set as this client sees it; empty if the method has none."""
    version: Annotated[str, Field(max_length=100)]
    """Version and fingerprint of the code this client runs."""


class Ask(Records):
    """Score models on your own test share. ``w``: the global model's weights, if there is one."""

    experiment: Experiment
    t: Round
    w: StateDict | None
    models: dict[str, StateDict] = {}
    """Further global models by name, scored in the same exchange."""


class Score(Records):
    """Client k's answer to ``Ask``: accuracies in [0, 1] on its n test samples."""

    experiment: Experiment
    t: Round
    k: ClientId
    n: Count
    accuracy: Share | None
    """Of the client's own model, the global one where it has no other; None without samples."""
    accuracy_global: Share | None
    """Of the global model; None if there is none or no test samples."""
    accuracies: Annotated[dict[Name, Share], Field(max_length=100)] = {}
    """Of the ``Ask``'s further models, by name; empty without test samples."""


def task(shape: tuple[int, int, int], classes: tuple[str, ...]) -> str:
    """Input shape and fingerprint of the class names in order: what ``Peer.task`` holds."""
    digest = hashlib.sha256("\n".join(classes).encode()).hexdigest()[:12]
    return f"{'x'.join(map(str, shape))}/{len(classes)}/{digest}"
