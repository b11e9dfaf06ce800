"""Payloads that all methods share, and the envelope of every payload.

``Request`` is a request from the server to a client, ``Reply`` the reply; a method's own messages
are subclasses. Experiment, round and client form the envelope. The sender fills it in, the receiver
checks it, and no method writes it. A client is identified by its partition id k, never by the
runtime's node id.
"""

from typing import Annotated, Literal, Self, TypeVar, get_args

from flwr.app import RecordDict
from jaxtyping import Float64, Int32, UInt8
from pydantic import Field
from torch import Tensor

from common.exchange.records import Records, StateDict

ClientId = Annotated[int, Field(ge=0, lt=2**31)]
Round = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
"""Finite number, small enough that the mean of many is finite too."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9@.:_-]{1,100}$")]
EXPERIMENT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  #: names that are safe as folders
Experiment = Annotated[str, Field(pattern=EXPERIMENT)]
"""Name of the folder with the client states; the pattern excludes every path."""
MAX_CLASSES = 100_000
NO_PLACE = "but the federation has"
"""Part of a client's error if the federation has no place for it, after its number."""


class Envelope(Records, kind="protocol.Envelope"):
    """Payload with the fields that every payload carries."""

    experiment: Experiment = ""
    t: Round = 0

    @classmethod
    def unpack(cls, content: RecordDict) -> Self:
        """Return the payload as ``Records.unpack`` does; a missing field is a ``ValueError``."""
        payload = super().unpack(content)
        if missing := cls.model_fields.keys() - payload.model_fields_set - cls.omitted:
            raise ValueError(f"{cls.kind}: field {min(missing)!r}: Field required")
        return payload


class ToClient(Envelope, kind="protocol.ToClient"):
    """Payload from the server to a client."""

    def stamped(self, experiment: str, t: int) -> Self:
        """Return the payload with its envelope filled in."""
        return self.model_copy(update={"experiment": experiment, "t": t})


class ToServer(Envelope, kind="protocol.ToServer"):
    """Payload from client k to the server."""

    k: ClientId = 0
    kept: Round = 0
    """Round ≤ t of the newest state that this client has stored; 0: it has stored none."""

    def stamped(self, request: ToClient, k: int, kept: int = 0) -> Self:
        """Return the payload with the envelope of a reply to ``request``."""
        envelope = {"experiment": request.experiment, "t": request.t, "k": k, "kept": kept}
        return self.model_copy(update=envelope)

    def check_envelope(self, experiment: str, t: int, k: int) -> None:
        """Raise a one-line ``ValueError`` unless the reply is from client k, for round t."""
        for name, got, expected in (
            ("client", self.k, k),
            ("round", self.t, t),
            ("experiment", self.experiment, experiment),
        ):
            if got != expected:
                raise ValueError(f"it is for {name} {got!r}, expected {expected!r}")


class Request(ToClient, kind="protocol.Down"):
    """First request of round t to a client."""

    omitted = frozenset({"steps", "oldest", "secure"})

    steps: Count = 0
    """Maximum number of local optimiser steps; 0: as [train] says (``clock.partial``)."""
    oldest: Round = 0
    """Oldest round that the client may have to repeat, in asynchronous rounds; 0: one after t -
    ``keep``. The client keeps its state before that round."""
    secure: UInt8[Tensor, " attempt"] | None = None
    """The attempt of a secure sum (``secure.keys.Attempt.to_bytes``); None without [secure]."""

    def limited(self, steps: int) -> Self:
        """Return the request for at most ``steps`` local steps; 0: the request itself."""
        return self.model_copy(update={"steps": steps}) if steps else self

    def repeatable(self, oldest: int) -> Self:
        """Return the request with its ``oldest``; 0: the request itself."""
        return self.model_copy(update={"oldest": oldest}) if oldest else self


class Reply(ToServer, kind="protocol.Up"):
    """Reply of a client to the ``Request`` of round t."""

    metrics: Annotated[dict[Name, Number], Field(max_length=50)] = {}
    """Scalars for the journal, such as the mean training loss."""


P = TypeVar("P", bound=Records)


def parameter(cls: type, kind: type[P]) -> type[P] | None:
    """Return the first subclass of ``kind`` among the parameters of the bases of ``cls``.

    It is ``Reply`` for ``class FedAvg(Averaged[Options, Reply])``; None if there is none.
    """
    bases = vars(cls).get("__orig_bases__", ())
    parameters = [value for base in bases for value in get_args(base) if isinstance(value, type)]
    return next((value for value in parameters if issubclass(value, kind)), None)


class ModelRequest(Request, kind="protocol.Model"):
    """Request with the weights that the client trains a copy of."""

    w: StateDict


class ModelReply(Reply, kind="protocol.Trained"):
    """Reply with the trained copy of the weights."""

    w: StateDict


class MaskedReply(Reply, kind="protocol.Masked"):
    """Reply with a masked update, in place of a ``ModelReply`` under [secure].

    ``y``: the words y_k as int32, of the floating-point entries in the order of their names, and a
    last one for the share of clipped entries. ``shares``: encrypted shares of b_k, one for each
    client of the attempt in order of k.
    """

    y: Int32[Tensor, " p"]
    shares: UInt8[Tensor, "n 48"]


class UnmaskRequest(Request, kind="protocol.Unmask"):
    """Request for what removes the masks of an attempt, to one survivor.

    ``survivors``: clients whose updates are in the sum, ascending. ``shares``: the shares that they
    encrypted for the receiver in this attempt, in the same order.
    """

    survivors: Annotated[list[ClientId], Field(max_length=255)]
    shares: UInt8[Tensor, "v 48"]


class UnmaskReply(Reply, kind="protocol.Unmasked"):
    """Reply to ``UnmaskRequest``: shares of the survivors' b_k, in order of k, and the keys of the
    sender's masks with each lost client, in order of k.
    """

    shares: UInt8[Tensor, "v 32"]
    pair_keys: UInt8[Tensor, "l 32"]


class CensusRequest(ToClient, kind="protocol.Hello"):
    """Request of the census, to which a client replies with its ``ClientInfo``.

    ``clients``: number of clients in the roster; 0: the number that the client expects. ``t``: the
    round after which the run resumes or the client joins, 0 for a new run. ``forget``: whether the
    client first deletes its stored state, which a replayed event ``replaced`` requires.
    """

    clients: Count
    forget: bool = False


class ClientInfo(ToServer, kind="protocol.Peer"):
    """Reply to ``CensusRequest``: a client's data, architecture and version."""

    values = 2 * MAX_CLASSES + 100
    omitted = frozenset({"targets", "secure", "signature", "roster"})

    n: Annotated[int, Field(ge=1, lt=2**40)]
    """Number of local training samples."""
    targets: Annotated[int, Field(ge=0, lt=2**60)] = 0
    """Number of their tokens to learn, under ``average.weights = "tokens"``."""
    n_test: Count
    """Number of local test samples."""
    model: Name
    """Architecture, for example ``resnet18@0.5``."""
    size: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the global model's entries that the client trains (``fiarse``)."""
    classes: Annotated[list[Count], Field(max_length=MAX_CLASSES)]
    """Class ids with at least one training sample, ascending."""
    counts: Annotated[list[Count], Field(max_length=MAX_CLASSES)] | None
    """Training samples of each class; None unless ``share-counts``."""
    task: Annotated[str, Field(max_length=200)]
    """Input shape and fingerprint of the class names, equal for all clients."""
    public: Annotated[str, Field(max_length=100)]
    """Fingerprint of this client's public set; empty if the method has none."""
    version: Annotated[str, Field(max_length=1000)]
    """Version and fingerprint of this client's code, including its plug-ins."""

    tags: Annotated[list[Name], Field(max_length=20)] = []
    """Tags of the client, by which a run can select it."""
    name: Annotated[str, Field(max_length=60)] = ""
    """Name of the client's node for the operator; empty if it has none."""
    clients: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of clients in the roster that this client expects."""
    secure: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """X25519 share of the client for [secure], in hex; empty without."""
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,200}$")] = ""
    """Signature on the share with the client's registered key, in hex; empty without a key."""
    roster: bool = False
    """Whether the client checks the signatures of its peers, with a ``roster.pub``."""

    def equals(self, other: Self) -> bool:
        """Return whether ``other``, of any round and on any node, describes the same client."""
        own = {"t": self.t, "kept": self.kept, "name": self.name, "secure": self.secure}
        own |= {"signature": self.signature, "roster": self.roster}
        return self == other.model_copy(update=own)


class ScoreRequest(ToClient, kind="protocol.Ask"):
    """Request to score models on the client's own test share.

    ``w``: the global model's weights; None if there is none. ``spec``: their architecture; empty:
    that of the model which this client shares.
    """

    spec: Name | Literal[""] = ""
    w: StateDict | None
    models: dict[str, StateDict] = {}
    """Further global models by name, scored in the same exchange."""
    confusion: bool = False
    """Whether the reply has the confusion of the model behind ``accuracy``."""


class StatisticsRequest(ToClient, kind="protocol.Measure"):
    """Request for the statistics of BatchNorm inputs on the client's training data.

    ``models``: weights by name; ``specs``: their architectures; ``by_batch``: whether the layers
    normalise with the statistics of the current batch; false: with their running statistics.
    """

    specs: dict[str, str]
    models: dict[str, StateDict]
    by_batch: bool


class StatisticsReply(ToServer, kind="protocol.Statistics"):
    """Reply to ``StatisticsRequest``, over the client's n training samples.

    ``models``: by name, float64 [C] under the names of the running statistics: the mean and the
    population variance of each channel of each BatchNorm layer's inputs.
    """

    n: Count
    models: Annotated[dict[str, StateDict], Field(max_length=100)]


Measured = Annotated[dict[Name, Number | None], Field(max_length=200)]
"""Scores by measure, or ``measure:model``; None where the samples do not define them."""


class ScoreReply(ToServer, kind="protocol.Score"):
    """Reply to ``ScoreRequest``: scores on the client's n test samples.

    Of classes they are accuracies in [0, 1]; of labels and numbers they are the measures, and the
    accuracies are None.
    """

    omitted = frozenset({"measures", "measures_global", "sums"})

    n: Count
    accuracy: Share | None
    """Accuracy of the client's own model, or else of the global one; None without test samples."""
    accuracy_global: Share | None
    """Accuracy of the global model; None if there is none, or no test samples."""
    accuracies: Annotated[dict[Name, Share], Field(max_length=100)] = {}
    """Accuracies of the further models of ``ScoreRequest`` by name; empty without test samples."""
    confusion: Int32[Tensor, "m 3"] | None = None
    """``common.metrics.Confusion`` of the model behind ``accuracy``; None if it is not requested,
    without test samples, or without ``share-counts``, because it has the samples of each class."""

    measures: Measured = {}
    """Scores of the client's own model, or else of the global one, and of the further models."""
    measures_global: Measured = {}
    """Scores of the global model; empty if there is none."""
    sums: Float64[Tensor, "c m"] | None = None
    """``Objective.sums`` of the model behind ``measures``, where classes have the confusion."""


FINE_TUNED = "finetuned"
"""Name of a fine-tuned copy among the accuracies of a ``FineTunedScoreReply``."""


class FineTunedScoreReply(ScoreReply, kind="protocol.FineTunedScore"):
    """Reply to ``ScoreRequest`` with the accuracy of a fine-tuned copy among ``accuracies``.

    ``metrics``: loss, steps and costs of the fine-tuning; empty without test samples.
    """

    metrics: Annotated[dict[Name, Number], Field(max_length=10)] = {}
