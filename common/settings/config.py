"""The typed run config: the tables that all methods share, and the class ``Config``.

Flower hands both apps one flat run config: ``seed``, ``data.name``, ``fedorion.dml`` and so on.
``common/parse.py`` converts it to a ``Config``. Settings that several methods share are in
``common/settings/options.py``, the settings of a single method in its contract.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny
from pydantic.fields import FieldInfo

from common.measures import ACCURACY, Measure, ObjectiveName, RegressionLoss
from common.settings.buffer import Buffer
from common.settings.clock import Clock, Profile
from common.settings.facts import Facts
from common.settings.marks import Auto, Form, Mark, Names, OfEach, Place, Unprotected
from common.settings.options import (
    Adapters,
    Average,
    Confidence,
    Descent,
    Ensemble,
    FineTuning,
    GeneratorTraining,
    NoiseTraining,
    Oca,
    Privacy,
    PublicTraining,
    Secure,
)
from common.settings.plugins import ADAPTED, OF_FOLDER, table_of
from common.settings.section import (
    AtLeastOne,
    Fraction,
    NonNegative,
    Positive,
    Section,
    kebab,
    keys_of,
)
from common.settings.section import Value as Value

NATURAL, OWN = "natural", "own"
"""Partitions with data that belong to clients: by the owners in the data set, or with a separate
data set for each client."""
AUTO = "auto"  #: partition that is ``NATURAL`` if the samples have owners
WHO = "{k}"
"""Placeholder in ``data.dir`` for the client's number, and for ``SERVER`` on the server."""
SERVER = "server"

ALWAYS = ("data", "train", "score", "select", "wire", "adapter", "clock", "buffer")
"""Tables that every method reads, beside the top level and the method's own."""

LABELS = r"^([^=,]+=[^=,]*(,[^=,]+=[^=,]*)*)?$"
NUMBERS = (
    Field(max_length=2000, pattern=r"^([-+.0-9eE]+(, ?[-+.0-9eE]+)*)?$"),
    Form("numbers with commas between them"),
    Mark.TEXT,
)
DEVICES = r"^(auto|cpu|cuda|cuda:[0-9]+)$"
DEVICE = (Field(pattern=DEVICES), Form("auto, cpu, cuda or cuda:N"))
TAGS = (
    Field(pattern=r"^$|^[A-Za-z0-9._-]{1,50}( *, *[A-Za-z0-9._-]{1,50}){0,19}$"),
    Form("at most 20 tags of letters, digits, '.', '_' and '-' with commas between them"),
)
SAMPLES_SHOWN = "it shows how many samples a client has"
SCORES_SHOWN = "clients' scores have no noise"
CLIENTS_SAMPLES = "the server's scores would be on clients' samples, without noise"
NO_SINGLE = "the server sees no single update"
EQUAL_CHANCES = "each client must be selected with the same probability"
MemoryFormat = Literal["auto", "channels-last", "contiguous"]

_LARGE = (f"torchvision:resnet{depth}" for depth in (50, 101, 152))
_RESNETS = ",".join(("resnet18", "resnet34", *_LARGE))
_HAR = [f"har-cnn{layers}{stride}" for layers in ("", "1") for stride in ("", "-s2", "-s3")]
_BAGS = "text-fast,text-lr"
_DEEP = ("text-transformer-{}h8", "text-transformer-4h{}", "text-transformer-{0}h{0}")
_TRANSFORMERS = "torchvision:vit_b_16,torchvision:vit_b_32"
FLEETS: dict[str, str] = {
    "hom": "wrn-40-1",
    "l-het": "resnet32,shufflenetv2,resnet20",
    "h-het": "resnet34,mobilenetv2,resnet18,shufflenetv2,wrn-40-1,wrn-40-1",
    "fedin": "resnet10,resnet14,resnet18,resnet22,resnet26",
    "htfe2": "fedavg-cnn,resnet18",
    "htfe3": "resnet10,resnet18,resnet34",
    "htfe4": "fedavg-cnn,torchvision:googlenet,mobilenetv2,resnet18",
    "htfe8": f"fedavg-cnn,torchvision:googlenet,mobilenetv2,{_RESNETS}",
    "htfe9": f"resnet10-cut1,resnet10-cut2,resnet10-cut3,resnet10,{_RESNETS}",
    "htfe-sen2": ",".join(_HAR[:2]),
    "htfe-sen3": ",".join(_HAR[:3]),
    "htfe-sen5": ",".join((*_HAR[:4], "har-cnn3")),
    "htfe-sen8": ",".join((*_HAR, "har-cnn3", "har-cnn3-s2")),
    "htfe-txt-2": _BAGS,
    "htfe-txt-4": f"{_BAGS},text-lstm2,text-bilstm",
    **{
        f"htfe-txt-5-{group}": ",".join(name.format(n) for n in (1, 2, 4, 8, 16))
        for group, name in enumerate(_DEEP, 1)
    },
    "htfe-txt-6": "text-fast,text-lstm2,text-bilstm,text-transformer-2h8,text-lr,text-gru2",
    "htm10": f"fedavg-cnn,torchvision:googlenet,mobilenetv2,{_RESNETS},{_TRANSFORMERS}",
}
"""Presets of the papers' fleets, by name: ``fleet = "h-het"`` selects its list. The first three are
FedORION's homogeneous, less and more heterogeneous fleets (section 4.2.1 and the released code);
``fedin`` has FedIN's five depths (section IV). The others are HtFLlib's model groups
(``system/main.py``), for images with ``stem = "imagenet"``, for sensors (``htfe-sen``), and for
texts (``htfe-txt``), there at a width of 64 instead of 512."""


def entries(fleet: str) -> tuple[str, ...]:
    """Return the architectures of a fleet, which is a preset or a comma-separated list."""
    listed = FLEETS.get(fleet.strip(), fleet)
    return tuple(entry.strip() for entry in listed.split(",") if entry.strip())


@final
class Run(Section):
    """Settings at the top level: participants, folders and machines."""

    method: Annotated[str, Names("methods"), Mark.CHOSEN] = "fedorion"
    """Federated learning method: a name of ``fedmosaic list methods``, or ``module:attribute``."""
    experiment: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100),
        Form("letters, digits, '.', '_' and '-', beginning with a letter or digit"),
        Mark.TEXT,
        Mark.FREE,
        Mark.STARTED,
    ] = ""
    """Name of the folder of private client states; empty: the run's id. A resumed run keeps it."""
    seed: Annotated[int, Field(ge=0, lt=2**31), Mark.MACHINE] = 1
    """Seed of every random draw."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000), Mark.FREE_WITHOUT_COSINE] = 6
    """Total number of rounds."""
    clients: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of clients; 0: one for each entry of the fleet, or for each owner with
    ``data.partition = "natural"`` or ``"auto"``. With ``submit`` and ``flwr run`` 0 is the number
    that the connected nodes expect."""
    min_clients: Annotated[int, Field(ge=0), Mark.FREE] = 0
    """Number of clients with which a run starts and goes on; the others may join later. 0: a run
    starts with all."""
    leave_after: Annotated[int, Field(ge=0), Mark.FREE] = 0
    """Rounds before which a client is not connected until it has left: it is no longer selected and
    no failure, until it returns. 0: it never leaves."""
    membership: Annotated[str, Place()] = ""
    """File of events that the run replays: clients that join, leave and return (.toml), or the
    journal of another run (.jsonl). Empty: the membership follows the connected nodes."""
    per_round: Annotated[int, Field(ge=0)] = 0
    """Clients selected in each round; 0: all."""
    min_replies: Annotated[
        Fraction,
        Unprotected("a missing reply counts as a zero update and stops nothing", 1.0),
    ] = 1.0
    """Minimum share of the selected clients that must send a valid reply for a round to count."""
    mode: Annotated[
        Literal["synchronous", "buffered"],
        OfEach("no clients of one sum are known when a client sends its update", "synchronous"),
    ] = "synchronous"
    """``synchronous``: a round waits for the replies of its clients. ``buffered``: asynchronous
    rounds, in which the server takes a step whenever ``buffer.size`` updates have arrived."""
    sanity: Annotated[NonNegative, Mark.FREE, OfEach(NO_SINGLE, 0.0, 720.0)] = 720.0
    """Limit s for refusing a reply; 0: none, as always under [secure]. Refused: a parameter change
    per local step above s times the median of three or more clients of one architecture, or a
    number above 10^4 · s."""
    fleet: Annotated[str, Field(min_length=1), Names("models")] = (
        "lenet5,resnet8,resnet20,wrn-16-1,mlp,cnn3"
    )
    """Comma-separated architectures (names of ``fedmosaic list models``, or ``module:attribute``),
    or a preset; client k gets entry k mod length, unless ``[node.k]`` has a ``model``."""
    global_model: Annotated[str, Field(min_length=1), Names("models"), Mark.CHOSEN] = "smallest"
    """The server's architecture; ``smallest``: the one in the fleet with the fewest parameters."""
    profiles: Annotated[str, Mark.TEXT] = ""
    """Comma-separated device profiles: presets of ``fedmosaic list profiles``, or tables
    ``[profile.NAME]``; client k gets entry k mod length, unless ``[node.k]`` has a ``profile``. The
    run then has a virtual clock (``[clock]``)."""
    pretrained: Annotated[bool, Mark.DOWNLOAD] = False
    """Initialise the clients' models from torchvision's ImageNet weights, if there are any."""
    weights: Annotated[str, Place("weights")] = ""
    """File of initial weights of the server's and the clients' networks (.safetensors, or a state
    dict of torch); ``{model}`` in the path is replaced by the architecture's name."""
    stem: Literal["auto", "imagenet", "cifar"] = "auto"
    """First layers of architectures that have both kinds; ``auto``: the architecture's default."""
    projection: Annotated[Literal["auto", "on", "off"], Auto("off")] = "auto"
    """MOON's projection of features to length 256 before the head of every network."""
    feature_dim: Annotated[int, Field(ge=0, le=100_000), Mark.CHOSEN] = 0
    """Number of features before the head of every network, by adaptive average pooling of its own
    features, as in HtFLlib (512 there); 0: each architecture's own number."""
    out: Annotated[str, Place(), Mark.FREE, Mark.STARTED] = ""
    """Folder on the server's machine for journal, checkpoint, summary and model."""
    state_dir: Annotated[str, Place("state-dirs"), Mark.FREE, Mark.STARTED] = ""
    """Folder on each client's machine for private state; a node's ``state-dir`` has precedence."""
    resume: Annotated[bool, Mark.FREE, Mark.STARTED] = False
    """Resume from the checkpoint in ``out``."""
    from_round: Annotated[
        int,
        Field(ge=-1),
        Mark.FREE,
        Unprotected("results released after that round count too", -1),
    ] = -1
    """With ``resume``: the round whose kept state the run resumes from; -1: the newest."""
    keep: Annotated[AtLeastOne, Mark.FREE] = 5
    """Number of last rounds whose states are kept, on the server and on each client."""
    plugins: Annotated[str, Place(), Mark.FREE] = ""
    """Folder of modules in ``module:attribute`` names, which are sent to the clients; empty: the
    experiment file's folder, or the current one."""
    runtime: Annotated[Literal["", "loopback", "ray", "grpc"], Mark.FREE, Mark.STARTED] = ""
    """Where the clients run. The launcher writes it to the summary; results do not depend on it."""
    timeout: Annotated[Positive, Mark.FREE] = 3600.0
    """Seconds to wait for the replies of one exchange."""
    window: Annotated[AtLeastOne, Mark.FREE] = 1000
    """Maximum number of messages that wait for a reply at once; the others are sent later, within
    ``timeout``."""
    wait: Annotated[Positive, Mark.FREE] = 120.0
    """Seconds to wait at the start for all clients to connect."""
    device: Annotated[str, *DEVICE, Mark.TEXT, Mark.MACHINE] = "auto"
    """Device of the networks: auto, cpu, cuda or cuda:N."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of forward passes in training, on server and clients. Weights, optimisers, scores,
    measurements and predictions for the public set are always float32."""
    threads: Annotated[int, Field(ge=1, le=256), Mark.MACHINE] = 1
    """Torch threads of each process. Results depend on it, so it does not follow the machine."""
    max_samples: Annotated[int, Field(ge=1, lt=2**40), Mark.FREE] = 10_000_000
    """Maximum training samples of a client; the census refuses a client that reports more."""
    rebind: Annotated[bool, Mark.FREE] = True
    """Allow a node with a new id to replace a client whose node is gone. Set it to false if
    SuperNodes have registered keys: a key keeps its node id, so a new id means another key."""
    flops: Annotated[bool, Unprotected(SAMPLES_SHOWN, False)] = False
    """Count the floating-point operations of training on clients and server (matrix products,
    convolutions, recurrent layers and attention, forward and backward). Unlike seconds, they are
    equal in every run. Slower."""
    memory: Annotated[bool, Unprotected(SAMPLES_SHOWN, False)] = False
    """Measure the peak bytes of tensors while a client trains, with its message, and while the
    server works. Equal in every run; slower."""
    share_counts: bool = True
    """Clients send the server their number of samples of each class (for pictures)."""
    name: Annotated[str, Field(max_length=60), Mark.TEXT, Mark.FREE] = ""
    """Name of the run in reports and comparisons; empty: the method."""
    labels: Annotated[
        str,
        Field(max_length=400, pattern=LABELS),
        Form("key=value, or several with commas between them"),
        Mark.TEXT,
        Mark.FREE,
    ] = ""
    """Comma-separated labels ``key=value`` of the run in reports and comparisons."""
    track: Annotated[str, Names("trackers"), Mark.FREE, Mark.STARTED] = ""
    """Comma-separated trackers that show the run's progress: tensorboard, wandb, mlflow."""
    callbacks: Annotated[str, Names("callbacks"), Mark.FREE, Mark.STARTED] = ""
    """Comma-separated callbacks of the user (``module:attribute``), which see every round on the
    server."""


TOKENIZERS = ("auto", "byte", "hash")  #: values of ``data.tokenizer`` that are no paths


@final
class Data(Section):
    """Settings of the samples, their partition into clients, and their batches."""

    name: Annotated[str, Names("datasets")] = "digits"
    """Data set: a name of ``fedmosaic list datasets``, or ``module:attribute``."""
    kind: Literal["auto", "image", "signal", "table", "tokens"] = "auto"
    """Kind of the samples; ``auto``: what the data set says. Arrays in ``npz`` and ``leaf`` that
    can be more than one kind need it."""
    objective: Literal["auto", "classes", "labels", "number", "next-token"] = "auto"
    """What is learnt: one class for each sample, several labels, numbers, or the next tokens of
    texts. ``auto``: what the data set says; files have classes unless this says otherwise."""
    target_mean: Annotated[str, *NUMBERS] = ""
    """Numbers to learn: mean of each target, with commas between them; empty: of the training
    samples. With partition ``own`` it is necessary, because the clients' data differ."""
    target_std: Annotated[str, *NUMBERS] = ""
    """The same for the standard deviations, which are above 0."""
    dir: Annotated[str, Place("data-dirs"), Mark.STARTED, Mark.MACHINE] = ""
    """Folder of the data; empty: the usual folder of this data set. With partition ``own``,
    ``{k}`` is replaced by each client's number, and by ``server`` on the server."""
    digest: Annotated[str, Mark.TEXT, Mark.MACHINE] = ""
    """Digest of the content of ``dir``; a folder with another content is refused, on the server and
    on each client. The digest instead of the path then identifies a recorded run."""
    download: Annotated[bool, Mark.DOWNLOAD, Mark.MACHINE] = False
    """Download a missing data set, if its source allows it."""
    image_size: Annotated[int, Field(ge=0, le=1024)] = 0
    """Side in pixels to which images are resized; 0: unchanged."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Number of training samples, with unchanged shares of the classes; 0: all."""
    test_samples: Annotated[int, Field(ge=0)] = 0
    """Number of test samples, with unchanged shares of the classes; 0: all."""
    partition: Annotated[str, Names("partitions")] = "label_dirichlet"
    """Partition: a name of ``fedmosaic list partitions``, or ``module:attribute``."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet partitions; a smaller value gives more skew."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the partition; 0: the run's seed."""
    min_size: Annotated[int, Field(ge=0)] = 10
    """Minimum samples of a client; random partitions are redrawn until all clients have them."""
    per_client: Annotated[int, Field(ge=0)] = 0
    """Samples of each client in DL-MH's partitions; 0: an equal share."""
    niid_scale: Literal["period5", "adapt"] = "period5"
    """DL-MH's partitions for a number of clients other than five: repeated, or adapted."""
    classes_per_client: AtLeastOne = 2
    """Classes of each client (``pathological``, ``flwr-pathological``), or shards of each client
    (``flwr-shard``)."""
    images: Literal["upright", "stored"] = "upright"
    """Photos in folders: turned upright by their EXIF orientation, and TIFF and GIF files of one
    frame are read; or with pixels as stored and without such files, as by earlier versions."""
    label_column: Annotated[str, Mark.TEXT] = ""
    """Column of the classes, or columns of labels or numbers with commas between them; empty:
    ``label`` in CSV files, in ``hub`` the only column with the feature type of a class, else
    ``label``, in ``labels.csv`` all columns."""
    owner_column: Annotated[str, Mark.TEXT] = ""
    """``hub``, ``csv``: column of the samples' owners; empty: samples have no owner."""
    ignore_columns: Annotated[str, Mark.TEXT] = ""
    """``hub``, ``csv``: columns that are no features, separated by commas. Row numbers of pandas
    are never features."""
    text_column: Annotated[str, Mark.TEXT] = ""
    """``hub``, ``csv``, ``jsonl``: column of the texts, which is then the only feature; empty:
    samples are no texts."""
    prompt: Annotated[str, Field(max_length=10_000), Mark.TEXT] = ""
    """Text that stands before each text of ``text-column`` and is not learnt, for next tokens;
    ``{NAME}`` is the value of another column: ``Question: {question} Answer:``."""
    tokenizer: Annotated[str, Place("data-dirs", TOKENIZERS)] = "auto"
    """What makes tokens of a text: ``byte``, ``hash`` of words, the path of a list of words
    (``.txt``), or of a folder with a Hugging Face ``tokenizer.json``. ``auto``: ``byte`` for next
    tokens, else ``hash``."""
    vocabulary: Annotated[int, Field(ge=3, le=10_000_000)] = 8192
    """Number of tokens of the tokenizer ``hash``, padding included."""
    max_length: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Tokens of a sample: a longer text is cut after them, or into windows for next tokens."""
    owners: Annotated[str, Field(max_length=10_000), Mark.TEXT] = ""
    """Owners of samples, by name or number with commas between them: samples of all others are left
    out, and these owners numbered anew; empty: all."""
    small_owners: Literal["refuse", "leave-out"] = "refuse"
    """Owners with fewer than two training samples: end the run before it starts, or are left out
    and the other owners numbered anew (partition ``natural``)."""
    window: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Length of signals in CSV files: consecutive rows in a window; 0: each row is a sample."""
    stride: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Rows between the starts of two windows; 0: half a window."""
    public: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training set that becomes the unlabelled public set, or of the data set's
    separate public images, if it has any. Clients share the remaining samples. 0: no public set."""
    public_name: Annotated[str, Names("datasets")] = ""
    """Another data set whose training images are the public set, in the task's size and number of
    channels; a name of ``fedmosaic list datasets``, or ``module:attribute``."""
    public_dir: Annotated[str, Place("data-dirs"), Mark.STARTED] = ""
    """Folder of the public set, in the format of ``public-name`` or else ``name``; a node's
    ``public-dir`` takes precedence."""
    public_samples: Annotated[int, Field(ge=0)] = 0
    """Number of public images from another data set, with unchanged shares of classes; 0: all."""
    test: Annotated[
        Literal["split", "own", "merge"],
        Unprotected(CLIENTS_SAMPLES, "split", unless=("data.partition", OWN)),
    ] = "split"
    """Test samples of a client: a share of its training samples (``split``), its own test samples
    in the data set (``own``), or a share of both together (``merge``)."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each client's samples that is reserved for its test, unless ``test`` is ``own``."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's remaining samples that is held out for choosing settings; 0: none."""
    validation_from: Literal["untested", "any"] = "untested"
    """Samples that can be for validation: those that no client or server tests on; or also those
    that another client tests on (partitions that draw with replacement), as in earlier versions."""
    score_on: Annotated[Literal["test", "validation"], Unprotected(CLIENTS_SAMPLES, "test")] = (
        "test"
    )
    """Samples of all scores: the test samples, or the validation samples: each client's own, and
    for the server those of all clients."""
    augment: Literal["none", "flip", "flip-0.6", "crop-flip", "cutout", "cutout-only"] = "none"
    """Random changes of training images."""
    standardize: Literal["dataset", "batch"] = "dataset"
    """Statistics that normalise the images: the data set's, or those of the batch."""

    def check(self) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if WHO in self.dir and self.partition != OWN:
            raise ValueError(
                f"data.dir = {self.dir!r} is not allowed with data.partition = "
                f"{self.partition!r}; {WHO} is for data.partition = {OWN!r}"
            )
        if self.digest and (not self.dir or self.partition == OWN):
            why = "data.dir is empty" if not self.dir else f"data.partition = {OWN!r} has several"
            raise ValueError(f"data.digest = {self.digest!r} needs one folder, and {why}")
        if self.test == "merge" and self.test_fraction == 0:
            raise ValueError('data.test = "merge" needs a data.test-fraction above 0')
        if self.score_on == "validation":
            if self.validation == 0:
                raise ValueError('data.score-on = "validation" needs a data.validation above 0')
            if self.partition == OWN:
                raise ValueError(
                    f'data.score-on = "validation" is not allowed with data.partition = {OWN!r}: '
                    "the server has no validation samples of the clients"
                )
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
    def objective_of_files(self) -> ObjectiveName:
        """What is learnt from files, which do not say it themselves."""
        return "classes" if self.objective == "auto" else self.objective

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns of the labels or numbers to learn; empty if ``label_column`` names none."""
        names = (name.strip() for name in self.label_column.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def by_owner(self) -> bool:
        """Whether clients are the owners of samples, if there are any."""
        return self.partition in (NATURAL, AUTO)

    @property
    def has_client_tests(self) -> bool:
        """Whether clients have samples for their scores."""
        return self.test == "own" or self.test_fraction > 0 or self.score_on == "validation"

    @property
    def elsewhere(self) -> str:
        """Key that selects another data set as the public set; empty if no such key is set."""
        if self.public_name:
            return "public-name"
        return "public-dir" if self.public_dir else ""


@final
class Train(Descent):
    """Settings of local training, equal for all methods unless a contract states otherwise."""

    epochs: Annotated[int, Field(ge=1, le=100_000), Mark.CLIENT_EPOCHS] = 5
    """Local epochs in a round."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Number of full batches in local training, over as many epochs as needed; 0: ``epochs``."""
    batch_size: AtLeastOne = 32
    """Images in a batch."""
    shuffle: Annotated[bool, Mark.CHOSEN] = True
    """Draw a new order of the samples in each local epoch; false: one random order for the run."""
    drop_last: Annotated[bool, Mark.CHOSEN] = False
    """Omit the incomplete last batch of a local epoch, unless it is the only one."""
    clip: Annotated[NonNegative, Auto(0.0), Mark.CHOSEN] = 0.0
    """Maximum gradient norm; 0: the method's default, usually no clipping."""
    class_weights: Annotated[Literal["none", "balanced"], Mark.CHOSEN] = "none"
    """Weights of the classes in the clients' loss of labels. ``balanced``: n / (C n_c), from the
    client's own numbers of samples of its C classes."""
    regression_loss: Annotated[RegressionLoss, Mark.CHOSEN] = "mse"
    """Numbers to learn: mean square, or Huber's loss with δ = 1, of standardised targets."""
    memory_format: Annotated[MemoryFormat, Mark.CHOSEN] = "auto"
    """Memory layout of weights; ``auto``: by the number of parameters. Networks for which
    channels-last is not safe are always contiguous."""


def listed(tags: str) -> list[str]:
    """Return the tags of a comma-separated list."""
    return [tag.strip() for tag in tags.split(",") if tag.strip()]


@final
class Select(Section):
    """Settings of the selection of ``per-round`` clients."""

    by: Annotated[
        str,
        Names("selections"),
        Unprotected(EQUAL_CHANCES, "uniform"),
        OfEach("clients send no losses", "uniform", "samples", "tier"),
    ] = "uniform"
    """Rule of the selection: a name of ``fedmosaic list selections``, or ``module:attribute``."""
    tags: Annotated[str, *TAGS, Mark.TEXT, Unprotected(EQUAL_CHANCES, "")] = ""
    """Comma-separated tags; a client is selected only if it has all of them (``node.K.tags``)."""


@final
class Wire(Section):
    """Settings of messages: the number type of predictions, and the size of replies."""

    dtype: Annotated[
        Literal["float32", "float16", "uint8"], OfEach("masked entries are integers", "float32")
    ] = "float32"
    """Number type of predictions and confidences; weights and features are never converted."""
    max_mb: Annotated[Positive, Mark.FREE] = 1000.0
    """Maximum size of a client's reply in 10⁶ bytes; a larger reply is refused unread."""


@final
class Score(Section):
    """Settings of the models' tests."""

    primary: Annotated[
        Literal["auto", "global", "personal"], Unprotected(SCORES_SHOWN, "auto", "global")
    ] = "auto"
    """Score that counts for the run. ``global``: the server's model on its test set. ``personal``:
    the clients' models on their own test samples. ``auto``: ``global`` if there is such a model."""
    every: AtLeastOne = 1
    """Rounds between primary scores and scores of the server's model; both also exist after the
    last round."""
    clients_every: Annotated[int, Field(ge=0), Unprotected(SCORES_SHOWN, 0)] = 0
    """Rounds between scores on the clients' test samples; 0: after the last round only. If the
    primary score is personal, they also follow ``every``."""
    clients: Annotated[int, Field(ge=0)] = 0
    """Number of clients that score, drawn once for the run; 0: all."""
    target: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Primary score, in its range (accuracy: 0 to 1); the summary has the round in which it is
    reached. 0: none."""
    stop: Annotated[bool, Mark.FREE] = False
    """End the run with the round that reaches ``target``, at the latest after ``rounds``."""
    patience: Annotated[int, Field(ge=0), Mark.FREE] = 0
    """Rounds without a new best score after which the run ends; 0: it ends after ``rounds``."""
    keep_best: Annotated[bool, Mark.FREE] = False
    """Keep the server's model after the round with the best primary score, in best.safetensors."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Images in a batch while scoring."""
    bn: Annotated[
        Literal["running", "batch", "recalibrated"],
        Unprotected("clients' statistics have no noise", "running", "batch"),
        OfEach("clients' statistics have no masks", "running", "batch"),
    ] = "running"
    """BatchNorm statistics for scores, equal for every method. ``running``: running statistics.
    ``batch``: those of each test batch (transductive). ``recalibrated``: clients measure running
    statistics of the global models anew on their training data, also for the saved model."""
    passes: AtLeastOne = 1
    """Measurements by the clients under ``bn = "recalibrated"``; the statistics are exact if there
    are as many measurements as BatchNorm layers in a row."""
    collapse: Annotated[
        Literal["report", "undo", "off"], Mark.FREE, OfEach(NO_SINGLE, "report", "off")
    ] = "report"
    """Reaction to a round after which the server's accuracy collapses, compared to the last four
    scores. ``report``: a warning. ``undo``: repeat the round once, without the clients whose
    updates stand out in it, if there are any. Always off under [privacy], for one-shot methods and
    without a global model."""
    drift: Annotated[
        bool,
        Unprotected("the clients' updates have no noise there", False),
        OfEach(NO_SINGLE, False),
    ] = False
    """Measure the drift of the clients' models in every round (server_app/callbacks/drift.py)."""

    def check(self) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if self.stop and not self.target:
            raise ValueError("score.stop = true needs a score.target, which is not 0")

    def ends(self, score: float | None, measure: Measure = ACCURACY) -> bool:
        """Return whether a round with this primary score, or None, is the last."""
        return self.stop and score is not None and measure.reaches(score, self.target)


@final
class Node(Section):
    """Settings of one client, ``[node.K]``; settings of its machine take precedence."""

    model: Annotated[str | None, Names("models")] = None
    """Architecture of the client, such as ``resnet8@0.5``."""
    profile: Annotated[str | None, Mark.TEXT] = None
    """Profile of the client's device, as in ``profiles``."""
    weights: Annotated[str | None, Place("weights")] = None
    """File of initial weights on the client's machine, as ``weights``."""
    base: Annotated[str | None, Place("weights")] = None
    """Folder of the base of adapters on the client's machine, as ``adapter.base``."""
    size: Annotated[float | None, Field(gt=0, le=1)] = None
    """``fiarse``: share of the global model's entries that the client trains."""
    device: Annotated[str | None, *DEVICE, Mark.TEXT, Mark.FREE] = None
    """Device of the client's networks: auto, cpu, cuda or cuda:N."""
    threads: Annotated[int | None, Field(ge=1, le=256)] = None
    """Torch threads of the client's process."""
    memory_mb: Annotated[int | None, Field(ge=200), Mark.FREE] = None
    """Maximum memory of a process of the client, in 10⁶ bytes."""
    data_dir: Annotated[str | None, Place("data-dirs")] = None
    """Folder of the client's data."""
    public_dir: Annotated[str | None, Place("data-dirs")] = None
    """Folder of the client's copy of the public set."""
    state_dir: Annotated[str | None, Place("state-dirs"), Mark.FREE] = None
    """Folder of the client's private state."""
    tags: Annotated[str | None, *TAGS, Mark.TEXT] = None
    """Comma-separated tags of the client, such as ``gpu,north``, for ``select.tags``."""
    name: Annotated[
        str | None,
        Field(pattern=r"^[^\x00-\x1f\x7f]{1,60}$"),
        Form("1 to 60 characters on one line"),
        Mark.TEXT,
    ] = None
    """Name of the client's node for the operator (``fedmosaic status``)."""
    incentive: bool | None = None
    """``i-dl-mh``: whether the client takes the server's reward."""


def not_allowed(key: str, value: Value, why: str, *allowed: Value) -> ValueError:
    """Return the one-line error for a value that another setting excludes."""
    words = ", ".join(map(json.dumps, allowed))
    line = f"{key} = {json.dumps(value)} is not allowed with {why}"
    return ValueError(f"{line}; allowed: {words}" if allowed else line)


def _check_marks(config: Config, kind: type[Unprotected | OfEach], why: str) -> None:
    """Raise ``ValueError``, one line, for a value that a mark of this kind excludes."""
    flat = config.flat
    for key, field in config.fields.items():
        for mark in field.metadata:
            if isinstance(mark, kind) and mark.excludes(key, flat):
                raise not_allowed(key, flat[key], f"{why}: {mark.reason}", *mark.allowed)


@final
class Required:
    """Values of a setting of another table that a method allows.

    ``why`` follows ``method = "NAME"`` in the line of an error.
    """

    def __init__(self, *allowed: Value, why: str = "") -> None:
        self.allowed, self.why = allowed, why


NO_TOKENS = "its generator needs a gradient through the samples, and tokens have none"
NO_NOISE = "its noise consists of numbers, not of tokens"
OF_SAMPLES = ("classes", "labels", "number")
"""Objectives with one output vector for each sample."""
EVERY = (*OF_SAMPLES, "next-token")
"""Objectives of methods whose losses say nothing of what is learnt."""


class MethodOptions(Section):
    """Settings of one method, and its requirements on other settings."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Tables of ``common/settings/options.py`` that the method reads."""
    auto: ClassVar[Mapping[str, Value]] = {}
    """Values of ``auto`` (numbers: 0) with this method, by key, if they differ from the usual."""

    requires: ClassVar[Mapping[str, Required]] = {}
    """Allowed values of settings of other tables, by key; those of base classes apply too."""

    projects: ClassVar[bool] = True
    """Whether the networks' heads may read a projection of the features, or a common width."""

    objectives: ClassVar[tuple[str, ...]] = ("classes",)
    """What the method can learn (``data.objective``)."""

    classes_only: ClassVar[str] = "its losses are defined for classes"
    """Reason for which it learns no other objective."""

    dense: ClassVar[bool] = False
    """Whether the server's network is the clients' base with dense updates instead of adapters."""

    images: ClassVar[str] = ""
    """Reason for which the method takes images only; empty: it takes every kind of input."""

    no_texts: ClassVar[str] = ""
    """Reason for which the method does not take texts; empty: it does."""

    facts: ClassVar[Facts] = Facts()
    """What travels, stays and is scored, for the documentation and the chooser."""

    leaks: ClassVar[str] = "uploads that its author does not say are only averaged"
    """Data other than a mean that a client sends or the server uses. It is the reason for which
    ``privacy.mode`` is refused, unless the method reads [privacy]."""

    @property
    def mean_predictions(self) -> bool:
        """Whether the server computes a mean of the clients' predictions (``public.robust``)."""
        return False

    @property
    def averages_nothing(self) -> str:
        """Setting under which no mean of clients' models is computed; empty if there is none."""
        return ""

    def check(self, config: Config) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        projection, width = config.run.projection == "on", config.run.feature_dim
        why = f'method = "{config.run.method}", which cuts networks apart'
        if projection and not self.projects:
            raise not_allowed("projection", "on", why, "off")
        if width and not self.projects:
            raise not_allowed("feature-dim", width, why, 0)
        if width and projection:
            raise not_allowed("feature-dim", width, 'projection = "on"', 0)
        robust, unused = config.average.robust, self.averages_nothing
        if "average" not in self.uses:
            unused = f'method = "{config.run.method}"'
        if unused and robust != "none":
            raise not_allowed("average.robust", robust, f"{unused}: nothing is averaged")
        if unused and (optimizer := config.average.server_optimizer) != "none":
            raise not_allowed(
                "average.server-optimizer", optimizer, f"{unused}: nothing is averaged"
            )
        if config.public.robust != "none" and not self.mean_predictions:
            why = f'method = "{config.run.method}" and these settings: no mean of predictions'
            raise not_allowed("public.robust", config.public.robust, why, "none")
        if unused and config.buffer.cache:
            raise not_allowed("buffer.cache", True, f"{unused}: nothing is averaged")
        if unused and config.oca.aggregate == "on":
            raise not_allowed("oca.aggregate", "on", f"{unused}: nothing is averaged")
        flat, base_classes = config.flat, type(self).__mro__
        for key, required in ChainMap(*(vars(c).get("requires", {}) for c in base_classes)).items():
            if flat[key] not in required.allowed:
                why = f'method = "{config.run.method}"{required.why}'
                raise not_allowed(key, flat[key], why, *required.allowed)

    @final
    def check_privacy(self, config: Config) -> None:
        """Raise ``ValueError``, one line, for settings that noise on a mean does not protect."""
        privacy = config.privacy
        if not privacy.on:
            return
        if "privacy" not in self.uses:
            why = f'method = "{config.run.method}": there are {self.leaks}'
            raise not_allowed("privacy.mode", privacy.mode, why, "off")
        _check_marks(config, Unprotected, f'privacy.mode = "{privacy.mode}"')
        if 0 < privacy.round_seconds <= config.run.timeout:
            why = f"timeout = {config.run.timeout:g}: a late reply would make a round longer"
            line = f"privacy.round-seconds = {privacy.round_seconds:g} is not allowed with {why}"
            raise ValueError(f"{line}; allowed: 0, or above {config.run.timeout:g}")

    @final
    def check_secure(self, config: Config) -> None:
        """Raise ``ValueError``, one line, for settings that need what single clients send."""
        secure, run = config.secure, config.run
        if not secure.on:
            return
        if "secure" not in self.uses:
            why = f'method = "{run.method}": it needs more of the uploads than their mean'
            raise not_allowed("secure.mode", secure.mode, why, "off")
        _check_marks(config, OfEach, 'secure.mode = "on"')
        if selected := run.per_round or run.clients:
            secure.check(selected, run.clients, run.min_replies)

    def check_fleet(self, task: Any, specs: tuple[str, ...]) -> None:
        """Raise ``ValueError``, one line, if networks of these architectures cannot take part.

        ``task``: a ``Task`` (``common/training/task.py``, which imports this module).
        """


class OwnModels(MethodOptions):
    """Options of methods that have no models except the clients' own."""

    facts = Facts(
        down="nothing",
        up="nothing",
        kept="θ_k, whole",
        sends="nothing",
        leaves="nothing beside the scalars",
        infers="how well the client learns",
        whole="",
        own="θ_k",
        part="nothing",
        rounds="many",
        public="none",
        networks="own",
    )

    whole_test: bool = False
    """Whether clients that have the whole test set also score on it; the journal has the mean as
    ``client_test_accuracy``."""


@final
class Config(BaseModel):
    """A parsed run config: ``config.run.seed``, ``config.data.alpha``, ``config.noise.kind``."""

    model_config = ConfigDict(frozen=True)

    run: Run
    data: Data
    train: Train
    score: Score
    select: Select
    wire: Wire
    average: Average
    oca: Oca
    finetune: FineTuning
    adapter: Adapters
    noise: NoiseTraining
    generator: GeneratorTraining
    confidence: Confidence
    ensemble: Ensemble
    public: PublicTraining
    privacy: Privacy
    secure: Secure
    clock: Clock
    buffer: Buffer
    method: SerializeAsAny[MethodOptions]
    """Table of the chosen method."""
    nodes: dict[int, Node] = {}
    """Settings of single clients, by client number."""
    profiles: dict[str, Profile] = {}
    """Settings of devices, by name."""

    @property
    def tables(self) -> dict[str, Section]:
        """Every table by name; the top level is ``run``, the method's table has its name."""
        return {"run": self.run, **{name: getattr(self, name) for name in SECTIONS}} | {
            table_of(self.run.method): self.method
        }

    @property
    def read(self) -> dict[str, Section]:
        """The tables that decide this run, by name: without a clock not ``[clock]``, without
        adapters not ``[adapter]``, and ``[buffer]`` only for asynchronous rounds."""
        own = table_of(self.run.method)
        names = {"run", *ALWAYS, own, *self.method.uses}
        if not self.on_clock:
            names.remove("clock")
        if not self.adapted:
            names.remove("adapter")
        if not self.buffered:
            names.remove("buffer")
        return {name: section for name, section in self.tables.items() if name in names}

    @property
    def flat(self) -> dict[str, Value]:
        """This configuration as a flat run config, without the tables of other methods."""
        shared = {
            kebab(name) if table == "run" else f"{table}.{kebab(name)}": value
            for table, section in self.tables.items()
            for name, value in section
        }
        return shared | {
            f"{table}.{leaf}": value
            for table, section in self.named.items()
            for leaf, value in section.model_dump(by_alias=True, exclude_none=True).items()
        }

    @property
    def named(self) -> dict[str, Section]:
        """Tables of single clients and of devices, by name, such as ``node.3``."""
        nodes: dict[str, Section] = {f"node.{k}": self.nodes[k] for k in sorted(self.nodes)}
        return nodes | {f"profile.{name}": self.profiles[name] for name in sorted(self.profiles)}

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The field of each key in ``flat``, without those of single clients."""
        return {
            key: field
            for table, section in self.tables.items()
            for key, field in keys_of("" if table == "run" else table, type(section))
        }

    @property
    def fine_tunes(self) -> bool:
        """Whether clients also score a fine-tuned copy of their model (``finetune.epochs``)."""
        return self.finetune.epochs > 0 and "finetune" in self.method.uses

    @property
    def fleet(self) -> tuple[str, ...]:
        """The fleet's architectures, in its order."""
        return entries(self.run.fleet)

    @property
    def brought(self) -> tuple[str, ...]:
        """Architectures of the fleet and of single nodes, each once."""
        own = (node.model for _, node in sorted(self.nodes.items()) if node.model)
        return tuple(dict.fromkeys((*self.fleet, *own)))

    @property
    def adapted(self) -> bool:
        """Whether networks of the run have adapters, or are of the folder ``adapter.base``."""
        names = (spec.partition("@")[0] for spec in (*self.brought, self.run.global_model))
        return any(ADAPTED.fullmatch(name) or name == OF_FOLDER for name in names)

    @property
    def buffered(self) -> bool:
        """Whether the run has asynchronous rounds (``mode``)."""
        return self.run.mode == "buffered"

    @property
    def replays_jobs(self) -> bool:
        """Whether asynchronous rounds follow the order of another run's journal."""
        return self.buffered and not self.on_clock and self.run.membership.endswith(".jsonl")

    def replies(self, clients: int) -> int:
        """Return how many replies a round waits for, of a roster of ``clients``: m, or K."""
        if self.buffered:
            return self.buffer.sizes(self.run.per_round, clients)[0]
        return self.run.per_round or clients

    @property
    def on_clock(self) -> bool:
        """Whether the run has a virtual clock: ``profiles``, or a client's ``profile``."""
        return bool(self.run.profiles or any(node.profile for node in self.nodes.values()))

    def profile_of(self, k: int) -> str:
        """Return the name of client k's profile; empty if it has none."""
        if (node := self.nodes.get(k)) and node.profile:
            return node.profile
        names = listed(self.run.profiles)
        return names[k % len(names)] if names else ""

    def node(self, k: int) -> dict[str, Value]:
        """Return the settings in ``[node.k]``, such as ``{"data-dir": "/data/3"}``."""
        node = self.nodes.get(k)
        return node.model_dump(by_alias=True, exclude_none=True) if node else {}

    def data_of(self, k: int, node: Mapping[str, Value]) -> Data:
        """Return [data] of client k; ``node``: its settings in ``[node.k]``."""
        places = {
            "dir": str(node.get("data-dir", self.data.dir)).replace(WHO, str(k)),
            "public_dir": str(node.get("public-dir", self.data.public_dir)),
        }
        return self.data.model_copy(update=places)

    def with_run(self, **changes: Value) -> Config:
        """Return this configuration with changed values in the top level."""
        return self.model_copy(update={"run": self.run.model_copy(update=changes)})

    @property
    def partition_seed(self) -> int:
        """Seed of the partition."""
        return self.data.seed or self.run.seed


SECTIONS: dict[str, Any] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if name not in ("run", "method", "nodes", "profiles")
}
"""Tables that do not belong to a single method, by name."""
