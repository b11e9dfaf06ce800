"""The run config, typed: the tables that every method shares, and the whole.

Flower hands both apps one flat run config: ``seed``, ``data.name``, ``fedorion.dml`` and so on.
``common/settings/parse.py`` makes a ``Config`` of it. The knobs of parts that several methods share
stand in ``common/settings/options.py``, a method's own in its contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from common.settings.options import (
    Average,
    Confidence,
    Descent,
    Ensemble,
    GeneratorTraining,
    NoiseTraining,
    Oca,
    Privacy,
    PublicTraining,
)
from common.settings.plugins import table_of
from common.settings.section import (
    AtLeastOne,
    Auto,
    Fraction,
    NonNegative,
    Positive,
    Section,
    kebab,
)
from common.settings.section import Value as Value

NATURAL, OWN = "natural", "own"
"""Partitions in which data belong to clients: to the owners that a data set tells of, or to each
client a data set of its own."""
WHO = "{k}"
"""Stands in ``data.dir`` for the client's number, and for ``SERVER`` at the server."""
SERVER = "server"

DEVICES = r"^(auto|cpu|cuda|cuda:[0-9]+)$"
MemoryFormat = Literal["auto", "channels-last", "contiguous"]

FLEETS: dict[str, str] = {
    "hom": "wrn-40-1",
    "l-het": "resnet32,shufflenetv2,resnet20",
    "h-het": "resnet34,mobilenetv2,resnet18,shufflenetv2,wrn-40-1,wrn-40-1",
    "fedin": "resnet10,resnet14,resnet18,resnet22,resnet26",
}
"""Fleets that papers use, by name: ``fleet = "h-het"`` stands for its list. FedORION's homogeneous,
lower and higher heterogeneous ones (section 4.2.1, the released code); FedIN's five depths (section
IV)."""


def entries(fleet: str) -> tuple[str, ...]:
    """The architectures of a fleet: a preset's, or those of a comma-separated list."""
    listed = FLEETS.get(fleet.strip(), fleet)
    return tuple(entry.strip() for entry in listed.split(",") if entry.strip())


@final
class Run(Section):
    """The top level: who takes part and where things are."""

    method: str = "fedorion"
    """A name of ``fedmosaic list methods``, or ``module:attribute``."""
    experiment: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100)
    ] = ""
    """Name under which clients keep private state; empty: the run's id. A resumed run keeps it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Decides every random draw."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 6
    """Rounds in all."""
    clients: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of clients; 0: one for each entry of the fleet, or for each owner with
    ``data.partition = "natural"`` (plain ``flwr run``: as many as are connected)."""
    per_round: Annotated[int, Field(ge=0)] = 0
    """Clients selected each round; 0: all."""
    min_replies: Fraction = 1.0
    """A round counts if at least this fraction of the selected clients answered well."""
    sanity: NonNegative = 720.0
    """A reply is refused if its parameters changed by more than so many times the median per local
    step of three or more clients of one architecture, or if it has a number above 10^4 times this;
    0: never."""
    fleet: Annotated[str, Field(min_length=1)] = "lenet5,resnet8,resnet20,wrn-16-1,mlp,cnn3"
    """Comma-separated architectures (names of ``fedmosaic list models``, or ``module:attribute``),
    or a preset; client k gets entry k mod length, unless its node names one."""
    global_model: Annotated[str, Field(min_length=1)] = "smallest"
    """The server's architecture; ``smallest``: the one of the fleet with the fewest parameters."""
    pretrained: bool = False
    """Clients' own models start from torchvision's ImageNet weights where there are some."""
    weights: str = ""
    """File of weights that the first networks start from, the server's and the clients'
    (.safetensors, or a state dict of torch); ``{model}`` in it is the architecture's name."""
    stem: Literal["auto", "imagenet", "cifar"] = "auto"
    """First layers of the architectures that have both; ``auto``: each one's own default."""
    projection: Annotated[Literal["auto", "on", "off"], Auto("off")] = "auto"
    """MOON's projection of the features to 256 before every network's head."""
    out: str = ""
    """Folder on the server's machine for journal, checkpoint, summary, model."""
    state_dir: str = ""
    """Folder on each client's machine for private state; a node's own ``state-dir`` wins."""
    resume: bool = False
    """Go on from the checkpoint in ``out``."""
    from_round: Annotated[int, Field(ge=-1)] = -1
    """With ``resume``: go back to the state after this round, of those that are kept; -1: the
    newest."""
    keep: AtLeastOne = 5
    """After how many of the last rounds the state is kept, the server's and each client's."""
    plugins: str = ""
    """Folder where ``module:attribute`` names are looked for and from where such modules travel to
    the clients; empty: the experiment file's, or the one you are in."""
    runtime: Literal["", "loopback", "ray", "grpc"] = ""
    """Written to the summary by the launcher; changes nothing else."""
    timeout: Positive = 3600.0
    """Seconds to wait for the replies of one exchange."""
    window: AtLeastOne = 1000
    """Most messages of an exchange that wait for a reply at once; the others wait for their turn,
    within ``timeout``."""
    wait: Positive = 120.0
    """Seconds to wait at the start until all clients are connected."""
    device: Annotated[str, Field(pattern=DEVICES)] = "auto"
    """Where networks are computed: auto, cpu, cuda or cuda:N."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the forward passes in training: students, teachers and generators, on server
    and clients. Weights and optimisers stay float32; so do scores, measurements and predictions
    for the public set."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Torch threads of each process; part of a result's identity, so not the machine's choice."""
    max_samples: Annotated[int, Field(ge=1, lt=2**40)] = 10_000_000
    """Most training samples a client may claim; who claims more is refused by the census."""
    rebind: bool = True
    """A node under a new id may take the place of a client whose node is gone. Set it to false
    where SuperNodes have registered keys: a key keeps its node id, so another id is another key."""
    flops: bool = False
    """Count the floating-point operations of training (matrix products and convolutions, forward
    and backward), the clients' and the server's: unlike seconds, they are the same in every run.
    Slower."""
    memory: bool = False
    """Measure the most bytes that tensors take at once while a client trains, message included, and
    while the server works. The same in every run; slower."""
    share_counts: bool = True
    """Clients tell the server how many samples of each class they hold (for pictures)."""
    track: str = ""
    """Programs that show the run as it goes on: tensorboard, wandb, mlflow; comma-separated."""


@final
class Data(Section):
    """Which images, how they are cut into clients and how batches are made of them."""

    name: str = "digits"
    """A name of ``fedmosaic list datasets``, or ``module:attribute``."""
    dir: str = ""
    """Folder of the data; empty: where such a data set usually lies. With partition ``own``,
    ``{k}`` in it is each client's number, and ``server`` at the server."""
    download: bool = False
    """Fetch a data set that is not here, where its source allows it."""
    image_size: Annotated[int, Field(ge=0, le=1024)] = 0
    """Side in pixels to which images are resized; 0: as they are."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Training samples taken, every class keeping its share; 0: all."""
    test_samples: Annotated[int, Field(ge=0)] = 0
    """Test samples taken, every class keeping its share; 0: all."""
    partition: str = "label_dirichlet"
    """A name of ``fedmosaic list partitions``, or ``module:attribute``."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet partitions; the smaller, the more skewed."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the partition; 0: the run's seed."""
    min_size: Annotated[int, Field(ge=0)] = 10
    """Least samples of a client; partitions that can are drawn anew until all have them."""
    per_client: Annotated[int, Field(ge=0)] = 0
    """Samples of each client of DL-MH's partitions; 0: an equal share."""
    niid_scale: Literal["period5", "adapt"] = "period5"
    """DL-MH's partitions with other than five clients: repeated, or adapted to the number."""
    classes_per_client: AtLeastOne = 2
    """Classes of each client of ``flwr-pathological``, shards of ``flwr-shard``."""
    label_column: str = ""
    """``hub``: the column of the classes; empty: the only one that its features call so."""
    owner_column: str = ""
    """``hub``: the column that says whose each sample is; empty: nobody's."""
    public: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training set that becomes the unlabelled public set (of the images that the
    data set itself sets apart, if it does); the clients' shares are cut from the rest. 0: none."""
    public_name: str = ""
    """Another data set whose training images are public, in colour or grey and as large as the
    task's; a name of ``fedmosaic list datasets``, or ``module:attribute``."""
    public_dir: str = ""
    """Folder of the public set, read as ``public-name`` or else ``name`` is; a node's
    ``public-dir`` wins."""
    public_samples: Annotated[int, Field(ge=0)] = 0
    """Public images taken of another data set, every class keeping its share; 0: all."""
    test: Literal["split", "own", "merge"] = "split"
    """A client's own test: a share of its training samples (``split``), the test samples that are
    its own as the data set says (``own``), or a share of both taken together (``merge``)."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each client's samples kept for its own test, unless ``test`` is ``own``."""
    augment: Literal["none", "flip", "flip-0.6", "crop-flip", "cutout", "cutout-only"] = "none"
    """What is done to training images."""
    standardize: Literal["dataset", "batch"] = "dataset"
    """Images are normalised by the data set's statistics, or by those of their batch."""

    def check(self) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if WHO in self.dir and self.partition != OWN:
            raise ValueError(
                f"data.dir = {self.dir!r} is not allowed with data.partition = "
                f"{self.partition!r}; {WHO} is for data.partition = {OWN!r}"
            )
        if self.test == "merge" and self.test_fraction == 0:
            raise ValueError('data.test = "merge" needs a data.test-fraction above 0')
        if self.public and self.elsewhere:
            raise ValueError(
                f"data.public = {self.public:g} is not allowed with data.{self.elsewhere}: the "
                "public set is a share of the training set or another data set"
            )
        if self.public_samples and not self.elsewhere:
            raise ValueError(
                f"data.public-samples = {self.public_samples} needs data.public-name or "
                "data.public-dir"
            )

    @property
    def elsewhere(self) -> str:
        """The key by which the public set is another data set; empty if it is none."""
        if self.public_name:
            return "public-name"
        return "public-dir" if self.public_dir else ""


@final
class Train(Descent):
    """Local training, the same for every method unless its contract says otherwise."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Passes over the local samples in a round."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Local training takes exactly so many full batches, round and round; 0: ``epochs`` epochs."""
    batch_size: AtLeastOne = 32
    """Images in a batch."""
    clip: Annotated[NonNegative, Auto(0.0)] = 0.0
    """Largest gradient norm; 0: the method's own, of most no clipping."""
    memory_format: MemoryFormat = "auto"
    """Layout of the networks' weights; ``auto``: by their number of parameters. Never channels-last
    where that is not safe."""


@final
class Wire(Section):
    """How numbers in bounded ranges travel, and how many."""

    dtype: Literal["float32", "float16", "uint8"] = "float32"
    """Type of predictions and confidences in messages; weights and features are never converted."""
    max_mb: Positive = 1000.0
    """Largest reply of a client, in millions of bytes; a larger one is refused unread."""


@final
class Score(Section):
    """When and how models are tested."""

    every: AtLeastOne = 1
    """The server's model is scored every so many rounds, and after the last."""
    clients_every: Annotated[int, Field(ge=0)] = 0
    """Clients score on their own test shares every so many rounds; 0: after the last only."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many clients score, a sample that is drawn once for the run; 0: all."""
    target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Test accuracy of which the summary says in which round it was reached; 0: none."""
    stop: bool = False
    """The run ends with the round that reaches ``target``; ``rounds`` is then the most it takes."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Images scored at a time."""
    bn: Literal["running", "batch", "recalibrated"] = "running"
    """BatchNorm's statistics when models are scored, the same for every method: the running ones;
    those of each test batch (transductive); or, for the global models as scored and saved, running
    ones that clients measure anew on their training data."""
    passes: AtLeastOne = 1
    """Measurements by the clients under ``bn = "recalibrated"``; the statistics are exact after as
    many as there are BatchNorm layers in a row."""
    drift: bool = False
    """Measure in every round how far the clients trained apart
    (``server_app/scoring/drift.py``).
    """

    def check(self) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if self.stop and not self.target:
            raise ValueError("score.stop = true needs a score.target above 0")

    def ends(self, accuracy: float | None) -> bool:
        """Whether a round with this test accuracy, in [0, 1] or not scored, is the last."""
        return self.stop and accuracy is not None and accuracy >= self.target


@final
class Node(Section):
    """One client's own settings, ``[node.K]``; what its machine says itself wins over them."""

    model: str | None = None
    """Its architecture, such as ``resnet8@0.5``."""
    size: Annotated[float | None, Field(gt=0, le=1)] = None
    """``fiarse``: the share of the global model's entries that it trains."""
    device: Annotated[str | None, Field(pattern=DEVICES)] = None
    """Where its networks are computed: auto, cpu, cuda or cuda:N."""
    threads: Annotated[int | None, Field(ge=1, le=256)] = None
    """Processor threads of torch."""
    memory_mb: Annotated[int | None, Field(ge=200)] = None
    """Most memory that a process of this client may take, in 10⁶ bytes."""
    data_dir: str | None = None
    """Folder of its data."""
    public_dir: str | None = None
    """Folder of its copy of the public set."""
    state_dir: str | None = None
    """Folder of what it keeps between rounds."""
    incentive: bool | None = None
    """``i-dl-mh``: whether it wants what the server gives back."""


def not_allowed(key: str, value: Value, why: str, *allowed: Value) -> ValueError:
    """Return the one line that refuses a value which another setting rules out."""
    words = ", ".join(map(json.dumps, allowed))
    line = f"{key} = {json.dumps(value)} is not allowed with {why}"
    return ValueError(f"{line}; allowed: {words}" if allowed else line)


class MethodOptions(Section):
    """A method's own knobs, and what it asks of the others."""

    uses: ClassVar[tuple[str, ...]] = ()
    """The tables of ``common/settings/options.py`` that the method reads."""
    auto: ClassVar[Mapping[str, Value]] = {}
    """What ``auto`` (numbers: 0) stands for with this method, by key, where it is not the usual."""

    projects: ClassVar[bool] = True
    """Whether its networks may have a projection before their heads."""

    leaks: ClassVar[str] = "uploads that its author does not say are only averaged"
    """What a client sends, or the server uses, beside a mean: why ``privacy.mode`` is refused,
    unless the method reads [privacy]."""

    @property
    def averages_nothing(self) -> str:
        """A setting that leaves no mean of the clients' models; empty if none does."""
        return ""

    def check(self, config: Config) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if config.run.projection == "on" and not self.projects:
            why = f'method = "{config.run.method}", which cuts networks apart'
            raise not_allowed("projection", "on", why, "off")
        robust, unused = config.average.robust, self.averages_nothing
        if "average" not in self.uses:
            unused = f'method = "{config.run.method}"'
        if unused and robust != "none":
            raise not_allowed("average.robust", robust, f"{unused}: nothing is averaged")
        if unused and config.oca.aggregate == "on":
            raise not_allowed("oca.aggregate", "on", f"{unused}: nothing is averaged")

    @final
    def check_privacy(self, config: Config) -> None:
        """Raise ``ValueError``, one line, for what noise on a mean would not protect."""
        privacy = config.privacy
        if not privacy.on:
            return
        if "privacy" not in self.uses:
            why = f'method = "{config.run.method}": there are {self.leaks}'
            raise not_allowed("privacy.mode", privacy.mode, why, "off")
        samples, flat = "it tells how many samples a client has", config.flat
        rules: dict[str, tuple[str, *tuple[Value, ...]]] = {
            "average.weights": ("one client must count as another", "uniform"),
            "average.robust": ("its noise is for a mean", "none"),
            "average.across": ("a size may be one client's", "none"),
            "oca.aggregate": ("cached uploads would be used again", "off"),
            "score.bn": ("clients' statistics have no noise", "running", "batch"),
            "score.clients-every": ("clients' scores have no noise", 0),
            "score.drift": ("the clients' updates have no noise there", False),
            "flops": (samples, False),
            "memory": (samples, False),
            "from-round": ("what was released after that round counts too", -1),
        }
        if privacy.mode == "local":
            rules["privacy.sampling"] = ("the server sees who answers", "public")
        for key, (reason, *allowed) in rules.items():
            if flat[key] not in allowed:
                why = f'privacy.mode = "{privacy.mode}": {reason}'
                raise not_allowed(key, flat[key], why, *allowed)

    def check_fleet(self, task: Any, specs: tuple[str, ...]) -> None:
        """Raise ``ValueError``, one line, if networks of these architectures cannot take part in
        the ``Task`` (``common/training/task.py``, which imports this module).
        """


@final
class Config(BaseModel):
    """The parsed run config: ``config.run.seed``, ``config.data.alpha``, ``config.noise.kind``."""

    model_config = ConfigDict(frozen=True)

    run: Run
    data: Data
    train: Train
    score: Score
    wire: Wire
    average: Average
    oca: Oca
    noise: NoiseTraining
    generator: GeneratorTraining
    confidence: Confidence
    ensemble: Ensemble
    public: PublicTraining
    privacy: Privacy
    method: SerializeAsAny[MethodOptions]
    """The chosen method's own table."""
    nodes: dict[int, Node] = {}
    """What single clients have of their own, by their number."""

    @property
    def tables(self) -> dict[str, Section]:
        """Every table by its name; the top level is ``run``, the method's has the method's name."""
        return {"run": self.run, **{name: getattr(self, name) for name in SECTIONS}} | {
            table_of(self.run.method): self.method
        }

    @property
    def flat(self) -> dict[str, Value]:
        """The same as a flat run config, without the tables that the method does not have."""
        shared = {
            kebab(name) if table == "run" else f"{table}.{kebab(name)}": value
            for table, section in self.tables.items()
            for name, value in section
        }
        own = ((k, leaf, v) for k in sorted(self.nodes) for leaf, v in self.node(k).items())
        return shared | {f"node.{k}.{leaf}": value for k, leaf, value in own}

    @property
    def fleet(self) -> tuple[str, ...]:
        return entries(self.run.fleet)

    @property
    def brought(self) -> tuple[str, ...]:
        """Every architecture of the fleet and of single nodes, once."""
        own = (node.model for _, node in sorted(self.nodes.items()) if node.model)
        return tuple(dict.fromkeys((*self.fleet, *own)))

    def node(self, k: int) -> dict[str, Value]:
        """Client k's own settings, such as ``{"data-dir": "/data/3"}``."""
        node = self.nodes.get(k)
        return node.model_dump(by_alias=True, exclude_none=True) if node else {}

    def data_of(self, k: int, node: Mapping[str, Value]) -> Data:
        """[data] as client k has it with these settings of its own."""
        places = {
            "dir": str(node.get("data-dir", self.data.dir)).replace(WHO, str(k)),
            "public_dir": str(node.get("public-dir", self.data.public_dir)),
        }
        return self.data.model_copy(update=places)

    def with_run(self, **changes: Value) -> Config:
        """Return the same configuration with other values in its top level."""
        return self.model_copy(update={"run": self.run.model_copy(update=changes)})

    @property
    def partition_seed(self) -> int:
        return self.data.seed or self.run.seed


SECTIONS: dict[str, Any] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if name not in ("run", "method", "nodes")
}
"""The tables that no single method owns."""
