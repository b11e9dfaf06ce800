"""The protocols of the leaderboard's boards: data, fleets, budgets and rows.

Each board is a file in ``deploy/experiments/leaderboard``.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import BeforeValidator, Field, model_validator

from common import methods
from common.settings.section import Value
from deploy.report.table import duration, operations, size
from deploy.settings import EXPERIMENTS, checked, flatten, read_toml
from deploy.study.paper_table import FilePart, Seeds
from deploy.study.records import Flat

FOLDER = EXPERIMENTS / "leaderboard"
FIRST = "fashion"  #: name of the first board
TRIES = 8  #: configurations of each method
COSTS = "costs"  #: column of the run that counts operations and measures memory
RATE = "train.lr"
PERSONAL = "personal.accuracy"  #: curve of the personal score
PROTOTYPE = "fairness.prototype.amp"  #: curve of the personal score by the nearest prototype

Flattened = Annotated[dict[str, Value], BeforeValidator(flatten)]
Rates = Annotated[list[float], Field(min_length=TRIES, max_length=TRIES)]


@final
class Fleet(FilePart):
    """Architectures of the clients."""

    about: str
    largest: str
    set: Flattened


@final
class Kind(FilePart):
    """Settings of all methods of a kind, such as one-shot methods."""

    set: Flattened


@final
class Tuning(FilePart):
    """Seeds and settings of the runs that choose configurations by their mean."""

    seeds: Seeds = Field(min_length=1)
    skew: str
    """How labels differ between the clients, in words."""
    set: Flattened


@final
class Budget(FilePart):
    """Limits for accuracies at equal costs, for a whole run."""

    bytes: float
    """Bytes that all clients send and receive."""
    flops: float
    """Floating-point operations of training on clients and server."""
    time: float | None = None
    """Seconds on the virtual clock; without it, no column is at equal time."""

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits that the board has, by key of ``LIMITS``."""
        values = {key: getattr(self, key) for key in LIMITS}
        return {key: value for key, value in values.items() if value is not None}


@final
@dataclass(frozen=True)
class Limit:
    """A limit of a budget, with a column "at equal ``name``"."""

    name: str
    cost: str
    """The cost that it limits, one of ``records.COSTS``."""
    about: Callable[[float], str]
    """What a value of the limit is, in words."""
    counted: bool = False
    """Whether only the run that counts costs has it."""


LIMITS: Mapping[str, Limit] = {
    "bytes": Limit("bytes", "bytes", lambda x: f"{size(x)} of all clients in all rounds"),
    "flops": Limit("operations", "flops", lambda x: f"{operations(int(x))} of training", True),
    "time": Limit("time", "clock", lambda x: f"{duration(x)} on the virtual clock"),
}
"""The limits that a budget can have, by its field."""


@final
class Row(FilePart):
    """A method. It has a row of the board on each of its fleets."""

    name: str = Field(min_length=1)
    fleets: list[str] = Field(min_length=1)
    kinds: list[str] = []
    sends: str = ""
    """What leaves a client, besides sizes and scores; empty: as the method's contract says."""
    reference: bool = False
    """Whether it is a baseline on all fleets."""
    ranked: bool = True
    """Whether it has positions; false for training that is not federated."""
    omitted: str = ""
    """Why the method is not on the board, if so."""
    largest: bool = False
    """Whether the global score is that of the fleet's largest network."""
    personal: Literal["", "personal.accuracy", "fairness.prototype.amp"] = ""
    """Curve of the only score, a personal one, which chooses the configuration; empty: the row has
    both scores, and the primary one chooses."""
    set: Flattened
    rates: Rates | None = None
    """Learning rates instead of the protocol's, for a loss of another scale."""
    space: dict[str, Annotated[list[Value], Field(min_length=2, max_length=2)]] = {}
    """Two values of each further setting that is chosen with the learning rate."""


@final
class Pair(FilePart):
    """Two rows that a statement compares; all pairs of a board are corrected together."""

    fleet: str
    score: Literal["global", "personal"]
    row: str
    other: str


@final
class Protocol(FilePart):
    """The protocol of one board."""

    name: str
    """The board's."""
    version: int
    title: str
    seeds: Seeds = Field(min_length=2)
    partitions: Seeds = Field(min_length=1)
    paired: bool = False
    """Whether the i-th seed runs on the i-th partition only, instead of each on each."""
    edge: int = Field(default=0, ge=0)
    """Most further rates that are tried while the best one is the smallest or largest."""
    skew: dict[str, Flattened]
    """Settings that make labels differ between the clients, by their name."""
    rates: Rates
    base: Flattened
    tuning: Tuning
    budget: Budget
    fleet: dict[str, Fleet]
    kind: dict[str, Kind]
    row: list[Row]
    pair: list[Pair] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.paired and len(self.seeds) != len(self.partitions):
            raise ValueError(
                f"paired: {len(self.seeds)} seeds and {len(self.partitions)} partitions; "
                "both should have the same number"
            )
        rows = {(fleet, row.name) for row in self.row for fleet in row.fleets}
        for pair in self.pair:
            for name in (pair.row, pair.other):
                if (pair.fleet, name) not in rows:
                    raise ValueError(f"pair: {name!r} is no row of the fleet {pair.fleet!r}")
        return self

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return the partition and the seed of each run of a row with one skew."""
        if self.paired:
            return list(zip(self.partitions, self.seeds, strict=True))
        return list(itertools.product(self.partitions, self.seeds))

    def own_seeds(self, settings: Flat) -> list[int]:
        """Return the seeds of a column with these settings; empty if all columns have the same."""
        pairs = self.runs if self.paired else []
        return [seed for partition, seed in pairs if partition == settings["data.seed"]]

    @property
    def columns(self) -> dict[str, Flat]:
        """Return the settings of each column: a skew and a partition."""
        pairs = itertools.product(self.skew, self.partitions)
        return {column(s, p): {**self.skew[s], "data.seed": p} for s, p in pairs}

    @property
    def label(self) -> str:
        """Return the name of the folder of the board's record, and of its text."""
        return f"leaderboard_{self.name}"

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
        rates = row.rates or self.rates
        if not row.space:
            return [{RATE: rate} for rate in rates]
        axes: list[Sequence[Value]] = [rates[1::2], *row.space.values()]
        whole = [[*zip(*one, strict=True)] for one in itertools.product(*map(enumerate, axes))]
        kept = [values for at, values in whole if len(axes) == 2 or sum(at) % 2 == 0]
        return [dict(zip((RATE, *row.space), values, strict=True)) for values in kept]

    def settings(self, row: Row, fleet: str) -> Flat:
        """Return the settings of a row beyond those of all rows, without a configuration."""
        flat = dict(self.fleet[fleet].set)
        for kind in row.kinds:
            flat |= self.kind[kind].set
        return flat | row.set


def column(skew: str, partition: int) -> str:
    """Return the name of a column of the board."""
    return f"{skew}, partition {partition}"


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
    def sends(self) -> str:
        """What leaves a client."""
        return self.row.sends or methods.facts(str(self.row.set["method"])).sends

    @property
    def has_own(self) -> bool:
        """Whether clients keep networks of their own beside a global one."""
        if self.added:
            return False
        facts = methods.facts(str(self.row.set["method"]))
        return bool(facts.own and facts.whole)

    @property
    def one_shot(self) -> bool:
        return "one-shot" in self.row.kinds

    @property
    def public(self) -> bool:
        return "public" in self.row.kinds


def names() -> list[str]:
    """Return the names of the boards, the first one first."""
    return sorted(
        (path.stem for path in FOLDER.glob("*.toml")), key=lambda name: (name != FIRST, name)
    )


def read(name: str = FIRST) -> Protocol:
    """Read the protocol of a board.

    Raises ``ValueError``, one line, for an unknown name or a file that is no protocol.
    """
    if name not in names():
        raise ValueError(f"--board {name} is not allowed; allowed: {', '.join(names())}")
    path = FOLDER / f"{name}.toml"
    protocol = checked(Protocol, {**_content(path), "name": name}, path)
    for row in protocol.row:
        check_row(protocol, row, path)
        if len(protocol.configurations(row)) != TRIES:
            raise ValueError(f"{path}: {row.name} has other than {TRIES} configurations")
    return protocol


def _content(path: Path) -> dict[str, Any]:
    """Return what a protocol's file says, with what it takes from the board that it is ``like``.

    The settings of ``base`` and the kinds are added to the other board's; all else replaces what
    the other one has. ``rows`` names the other's rows that the board has too, on its own fleets,
    before rows of its own; without it the board has all of them.
    """
    own = read_toml(path)
    if "like" not in own:
        return own
    other = _content(path.parent / f"{own.pop('like')}.toml")
    kept = own.pop("rows", [row["name"] for row in other["row"]])
    fleets = own.get("fleet", other["fleet"])
    rows = [
        {**row, "fleets": [name for name in row["fleets"] if name in fleets]}
        for row in other["row"]
        if row["name"] in kept
    ]
    if unknown := set(kept) - {row["name"] for row in rows}:
        raise ValueError(f"{path}: rows that the other board lacks: {', '.join(sorted(unknown))}")
    return {
        **other,
        **own,
        "base": flatten(other["base"]) | flatten(own.get("base", {})),
        "kind": other["kind"] | own.get("kind", {}),
        "row": rows + own.get("row", []),
        "pair": own.get("pair", []),  # another board's rows and fleets can differ
    }


def check_row(protocol: Protocol, row: Row, path: Path) -> None:
    """Raise ``ValueError``, if a row in the file ``path`` has an unknown fleet or kind."""
    for what, names, known in (
        ("fleet", row.fleets, protocol.fleet),
        ("kind", row.kinds, protocol.kind),
    ):
        for one in names:
            if one not in known:
                raise ValueError(f"{path}: {row.name}: {what} {one!r} is none of the protocol's")
