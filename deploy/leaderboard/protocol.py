"""The protocol of the leaderboard: data, fleets, budgets and rows.

Its file is ``deploy/experiments/leaderboard/protocol.toml``.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from common.settings.section import Value
from deploy.run.settings import EXPERIMENTS, checked, flatten, read_toml
from deploy.study.records import Flat

FILE = EXPERIMENTS / "leaderboard" / "protocol.toml"
TRIES = 8  #: configurations of each method
COSTS = "costs"  #: column of the run that counts operations and measures memory
OWN = {"method", "global-model", "feature-dim"}
"""Settings at the top level that a method's row may choose."""
RATE = "train.lr"

Flattened = Annotated[dict[str, Value], BeforeValidator(flatten)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@final
class Fleet(_Part):
    """Architectures of the clients."""

    about: str
    largest: str
    set: Flattened


@final
class Kind(_Part):
    """Settings of all methods of a kind, such as one-shot methods."""

    set: Flattened


@final
class Tuning(_Part):
    """Seed and settings of the runs that choose configurations."""

    seed: int
    set: Flattened


@final
class Budget(_Part):
    """Limits for accuracies at equal costs, for a whole run."""

    bytes: float
    """Bytes that all clients send and receive."""
    flops: float
    """Floating-point operations of training on clients and server."""


@final
class Row(_Part):
    """A method. It has a row of the board on each of its fleets."""

    name: str = Field(min_length=1)
    fleets: list[str] = Field(min_length=1)
    kinds: list[str] = []
    sends: str
    """What leaves a client, besides sizes and scores."""
    reference: bool = False
    """Whether it is a baseline on all fleets."""
    ranked: bool = True
    """Whether it has a rank; false for training that is not federated."""
    largest: bool = False
    """Whether the global score is that of the fleet's largest network."""
    set: Flattened
    space: dict[str, Annotated[list[Value], Field(min_length=2, max_length=2)]] = {}
    """Two values of each further setting that is chosen with the learning rate."""


@final
class Protocol(_Part):
    """The content of the protocol's file."""

    version: int
    title: str
    seeds: list[int]
    partitions: list[int]
    alphas: list[float]
    rates: list[float] = Field(min_length=TRIES, max_length=TRIES)
    base: Flattened
    tuning: Tuning
    budget: Budget
    fleet: dict[str, Fleet]
    kind: dict[str, Kind]
    row: list[Row]

    @property
    def columns(self) -> dict[str, Flat]:
        """Return the settings of each column: a concentration α and a partition."""
        pairs = itertools.product(self.alphas, self.partitions)
        return {column(a, p): {"data.alpha": a, "data.seed": p} for a, p in pairs}

    @property
    def cost_settings(self) -> Flat:
        """Return the settings of the run that counts costs: a column's, with both counters."""
        return {**next(iter(self.columns.values())), "flops": True, "memory": True}

    def configurations(self, row: Row) -> list[Flat]:
        """Return the configurations that are tried for a row.

        They are eight learning rates; four rates with both values of one further setting; or half
        of the combinations of four rates and two further settings, so that each pair of a rate and
        another value is tried once.
        """
        if not row.space:
            return [{RATE: rate} for rate in self.rates]
        axes: list[Sequence[Value]] = [self.rates[1::2], *row.space.values()]
        whole = itertools.product(*(range(len(axis)) for axis in axes))
        kept = [at for at in whole if len(axes) == 2 or sum(at) % 2 == 0]
        keys = (RATE, *row.space)
        return [
            dict(zip(keys, (axis[i] for axis, i in zip(axes, at, strict=True)), strict=True))
            for at in kept
        ]

    def settings(self, row: Row, fleet: str) -> Flat:
        """Return the settings of a row beyond those of all rows, without a configuration."""
        flat = dict(self.fleet[fleet].set)
        for kind in row.kinds:
            flat |= self.kind[kind].set
        return flat | row.set


def column(alpha: float, partition: int) -> str:
    """Return the name of a column of the board."""
    return f"α = {alpha:g}, partition {partition}"


@final
@dataclass(frozen=True)
class Place:
    """A row of the board: a method on one fleet."""

    row: Row
    fleet: str
    added: bool = False
    """Whether a user has added it, with a configuration of the user's choice."""

    @property
    def name(self) -> str:
        return f"{self.row.name}, {self.fleet}" if len(self.row.fleets) > 1 else self.row.name

    @property
    def one_shot(self) -> bool:
        return "one-shot" in self.row.kinds

    @property
    def public(self) -> bool:
        return "public" in self.row.kinds


def read(path: Path = FILE) -> Protocol:
    """Read a protocol. Raises ``ValueError``, one line, if the file is none."""
    protocol = checked(Protocol, read_toml(path), path)
    for row in protocol.row:
        check_row(protocol, row, path)
        if len(protocol.configurations(row)) != TRIES:
            raise ValueError(f"{path}: {row.name} has other than {TRIES} configurations")
    return protocol


def check_row(protocol: Protocol, row: Row, path: Path) -> None:
    """Raise ``ValueError``, if a row in the file ``path`` has an unknown fleet or kind."""
    for what, names, known in (
        ("fleet", row.fleets, protocol.fleet),
        ("kind", row.kinds, protocol.kind),
    ):
        for one in names:
            if one not in known:
                raise ValueError(f"{path}: {row.name}: {what} {one!r} is none of the protocol's")
