"""Configuration: types, bounds and meanings. The values live in TOML, not here.

Flower hands both apps one flat run config: ``seed``, ``data.name``, ``fedorion.dml`` and so on.
The value of every knob stands in ``pyproject.toml`` under ``[tool.flwr.app.config]``; an experiment
overrides some. ``parse`` turns the flat mapping into a ``Config`` or raises one ``ValueError`` line
that names the key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.memory_format import MemoryFormat
from common.presets import entries

Value = bool | int | float | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]


PATTERNS = {
    "device": "auto, cpu, cuda or cuda:N",
    "experiment": "letters, digits, '.', '_' and '-', beginning with a letter or digit",
}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


DEVICES = r"^(auto|cpu|cuda|cuda:[0-9]+)$"


class Section(BaseModel):
    """One table of the run config. Field ``batch_size`` is the key ``batch-size``."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


class Run(Section):
    """The top level: who takes part and where things are."""

    method: str
    """A name of ``fedmosaic list methods``."""
    experiment: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100)]
    """Name under which clients keep private state; empty: the run's id. A resumed run keeps it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    clients: Annotated[int, Field(ge=0, le=1_000_000)]
    """Federation size; 0: as many as are connected (the command line: one per fleet entry)."""
    per_round: Annotated[int, Field(ge=0)]
    """Clients selected each round; 0: all."""
    min_replies: Fraction
    """A round counts if at least this fraction of the selected clients answered well."""
    fleet: Annotated[str, Field(min_length=1)]
    """Comma-separated architectures, or a preset; client k gets entry k mod length, unless its
    node names one."""
    global_model: Annotated[str, Field(min_length=1)]
    """The server's architecture; ``smallest``: the one of the fleet with the fewest parameters."""
    pretrained: bool
    """Clients' own models start from torchvision's ImageNet weights where there are some."""
    stem: Literal["auto", "imagenet", "cifar"]
    """First layers of the architectures that have both; ``auto``: each one's own default."""
    out: str
    """Folder on the server's machine for journal, checkpoint, summary, model."""
    state_dir: str
    """Folder on each client's machine for private state; a node's own ``state-dir`` wins."""
    resume: bool
    """Go on from the checkpoint in ``out``."""
    runtime: Literal["", "loopback", "ray", "grpc"]
    """Written to the summary by the launcher; changes nothing else."""
    timeout: Positive
    """Seconds to wait for the replies of one exchange."""
    wait: Positive
    """Seconds to wait at the start until all clients are connected."""
    device: Annotated[str, Field(pattern=DEVICES)]
    precision: Literal["fp32", "bf16"]
    threads: Annotated[int, Field(ge=1, le=256)]
    """Torch threads of each process; part of a result's identity, so not the machine's choice."""
    max_samples: Annotated[int, Field(ge=1, lt=2**40)]
    """Most training samples a client may claim; who claims more is refused by the census."""
    rebind: bool
    """A node under a new id may take the place of a client whose node is gone. Set it to false
    where SuperNodes have registered keys: a key keeps its node id, so another id is another key."""
    share_counts: bool
    """Clients tell the server how many samples of each class they hold (for pictures)."""


class Data(Section):
    """Which images, how they are cut into clients and how batches are made of them."""

    name: str
    dir: str
    download: bool
    image_size: Annotated[int, Field(ge=0, le=1024)]
    samples: Annotated[int, Field(ge=0)]
    test_samples: Annotated[int, Field(ge=0)]
    partition: str
    alpha: Positive
    """Concentration of the Dirichlet partitions; the smaller, the more skewed."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    """Seed of the partition; 0: the run's seed."""
    min_size: Annotated[int, Field(ge=0)]
    per_client: Annotated[int, Field(ge=0)]
    niid_scale: Literal["period5", "adapt"]
    public: Annotated[float, Field(ge=0, le=1)]
    """Share of the training set that becomes the unlabelled public set (of the images that the
    data set itself sets apart, if it does); the clients' shares are cut from the rest. 0: none."""
    public_dir: str
    """Folder with a public set of its own, read as ``name`` is; a node's ``public-dir`` wins."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)]
    """Share of each client's samples kept for its own test."""
    augment: Literal["none", "flip", "flip-0.6", "crop-flip", "cutout", "cutout-only"]
    standardize: Literal["dataset", "batch"]


class Train(Section):
    """Local training, the same for every method unless its contract says otherwise."""

    epochs: Annotated[int, Field(ge=1, le=100_000)]
    steps: Annotated[int, Field(ge=0)]
    """Local training takes exactly so many full batches, round and round; 0: ``epochs`` epochs."""
    batch_size: Annotated[int, Field(ge=1)]
    optimizer: Literal["sgd", "adam"]
    lr: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    clip: NonNegative
    """Largest gradient norm; 0: no clipping."""
    memory_format: MemoryFormat
    """Layout of the networks' weights; ``auto``: by their number of parameters."""


class Wire(Section):
    """How numbers in bounded ranges travel, and how many."""

    dtype: Literal["float32", "float16", "uint8"]
    """Of predictions and confidences; weights and features always travel as they are."""
    max_mb: Positive
    """Largest reply of a client, in millions of bytes; a larger one is refused unread."""


class Score(Section):
    """When and how models are tested."""

    every: Annotated[int, Field(ge=1)]
    """The server's model is scored every so many rounds, and after the last."""
    clients_every: Annotated[int, Field(ge=0)]
    """Clients score on their own test shares every so many rounds; 0: after the last only."""
    target: Annotated[float, Field(ge=0, le=1)]
    """Test accuracy of which the summary says in which round it was reached; 0: none."""
    batch_size: Annotated[int, Field(ge=2)]


SECTIONS: dict[str, type[Section]] = {"data": Data, "train": Train, "score": Score, "wire": Wire}
"""The tables that every method shares."""


class Config(BaseModel):
    """The parsed run config: ``config.run.seed``, ``config.data.alpha``, ``config.of(Config)``."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    run: Run
    data: Data
    train: Train
    score: Score
    wire: Wire
    method: Any
    """The section of the chosen method; its type is the ``Config`` of the method's contract."""

    @property
    def fleet(self) -> tuple[str, ...]:
        return entries(self.run.fleet)

    def with_out(self, out: str) -> Config:
        """The same configuration with its results in ``out``."""
        return self.model_copy(update={"run": self.run.model_copy(update={"out": out})})

    @property
    def partition_seed(self) -> int:
        return self.data.seed or self.run.seed


def parse(flat: Mapping[str, Value]) -> Config:
    """The typed configuration of a flat run config.

    Raises ``ValueError``, one line: an unknown key (with the nearest known one), a missing key, a
    value of the wrong type or out of bounds, a method that does not exist.
    """
    from common.methods import CONFIGS

    sections: dict[str, type[Section]] = {**SECTIONS, **CONFIGS}
    tables: dict[str, dict[str, Value]] = {name: {} for name in ["", *sections]}
    for key, value in flat.items():
        table, _, leaf = key.rpartition(".")
        if table not in tables:
            raise ValueError(_unknown(key, known_keys()))
        tables[table][leaf] = value
    run = _section(Run, "", tables[""])
    if run.method not in CONFIGS:
        raise ValueError(f'method = "{run.method}" is unknown; allowed: {", ".join(CONFIGS)}')
    parsed = {name: _section(kind, f"{name}.", tables[name]) for name, kind in sections.items()}
    config = Config(
        run=run,
        data=parsed["data"],
        train=parsed["train"],
        score=parsed["score"],
        wire=parsed["wire"],
        method=parsed[run.method],
    )
    _check(config)
    return config


def known_keys() -> list[str]:
    """Every key of the run config, flat."""
    from common.methods import CONFIGS

    sections: dict[str, type[Section]] = {"": Run, **SECTIONS, **CONFIGS}
    return [
        f"{table}.{_kebab(field)}".lstrip(".")
        for table, kind in sections.items()
        for field in kind.model_fields
    ]


def _check(config: Config) -> None:
    """What no single field can see."""
    run = config.run
    if run.clients and run.per_round > run.clients:
        raise ValueError(f"per-round = {run.per_round} is more than clients = {run.clients}")
    if not config.fleet:
        raise ValueError(f'fleet = "{run.fleet}" names no architecture')
    if getattr(config.method, "needs_public", False) and not (
        config.data.public or config.data.public_dir
    ):
        raise ValueError(
            f"method = {run.method!r} needs a public set: set data.public (0.8 in DL-MH's paper) "
            "or data.public-dir"
        )
    across = getattr(config.method, "across", "none")
    if across != "none" and getattr(config.method, "inactive", False):
        raise ValueError(
            f'{run.method}.across = "{across}" is not allowed with {run.method}.inactive = true; '
            'allowed: "none"'
        )
    robust, unused = (getattr(config.method, name, "") for name in ("robust", "averages_nothing"))
    if unused and robust != "none":
        raise ValueError(
            f'{run.method}.robust = "{robust}" is not allowed with {unused}: nothing is averaged'
        )


def _section(kind: type[Section], prefix: str, table: Mapping[str, Value]) -> Any:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise ValueError(_explain(kind, prefix, error.errors()[0])) from None


def _explain(kind: type[Section], prefix: str, error: Any) -> str:
    key = prefix + _kebab(str(error["loc"][0]))
    if error["type"] == "missing":
        return f"key {key!r} is missing"
    if error["type"] == "extra_forbidden":
        return _unknown(key, known_keys())
    allowed = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] == "string_pattern_mismatch":
        allowed = PATTERNS[key]
    if error["type"] == "string_too_short":
        allowed = "a name"
    value = error["input"]
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f"{key} = {shown} is not allowed; it should be {allowed}"


def _unknown(key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    return f"key {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")


def kind_of(key: str) -> type[Value]:
    """The Python type (bool, int, float or str) that a key's value has.

    Raises ``ValueError`` for an unknown key.
    """
    from common.methods import CONFIGS

    table, _, leaf = key.rpartition(".")
    sections: dict[str, type[Section]] = {"": Run, **SECTIONS, **CONFIGS}
    field = leaf.replace("-", "_")
    if table not in sections or field not in sections[table].model_fields:
        raise ValueError(_unknown(key, known_keys()))
    annotation: Any = sections[table].model_fields[field].annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        annotation = type(get_args(annotation)[0])
    assert annotation in (bool, int, float, str), annotation
    kind: type[Value] = annotation
    return kind
