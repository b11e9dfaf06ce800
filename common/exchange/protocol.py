"""Payloads that all methods share, and the envelope of every payload.

``Request`` is a request from the server to a client, ``Reply`` the reply; a method's own messages
are subclasses. Experiment, round and client form the envelope. The sender fills it in, the receiver
checks it, and no method writes it. A client is identified by its partition id k, never by the
runtime's node id.
"""

from typing import Annotated, Literal, Self

from flwr.app import RecordDict
from pydantic import Field

from common.exchange.records import Records, StateDict

ClientId = Annotated[int, Field(ge=0, lt=2**31)]
Round = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
"""Finite, and so far from overflow that means of them are finite too."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9@.:_-]{1,100}$")]
Experiment = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Clients keep their state in a folder of this name, so it can name no other folder."""
MAX_CLASSES = 100_000


class Envelope(Records, kind="protocol.Envelope"):
    """What every payload says of itself."""

    experiment: Experiment = ""
    t: Round = 0

    @classmethod
    def unpack(cls, content: RecordDict) -> Self:
        """As every payload's; whoever sends says everything, so here no field has a default."""
        payload = super().unpack(content)
        if missing := cls.model_fields.keys() - payload.model_fields_set:
            raise ValueError(f"{cls.kind}: field {min(missing)!r}: Field required")
        return payload


class ToClient(Envelope, kind="protocol.ToClient"):
    """The envelope of what the server sends."""

    def stamped(self, experiment: str, t: int) -> Self:
        """The payload with its envelope filled in."""
        return self.model_copy(update={"experiment": experiment, "t": t})


class ToServer(Envelope, kind="protocol.ToServer"):
    """The envelope of what client k answers."""

    k: ClientId = 0
    kept: Round = 0
    """Round ≤ t of the newest state that this client keeps; 0: it keeps none."""

    def stamped(self, question: ToClient, k: int, kept: int = 0) -> Self:
        """The payload with its envelope filled in: it answers ``question``."""
        envelope = {"experiment": question.experiment, "t": question.t, "k": k, "kept": kept}
        return self.model_copy(update=envelope)

    def check_envelope(self, experiment: str, t: int, k: int) -> None:
        """Raise ``ValueError``, one line, unless it is client k's of round t."""
        for what, got, expected in (
            ("client", self.k, k),
            ("round", self.t, t),
            ("experiment", self.experiment, experiment),
        ):
            if got != expected:
                raise ValueError(f"it is for {what} {got!r}, expected {expected!r}")


class Request(ToClient, kind="protocol.Down"):
    """What round t begins with at a client."""


class Reply(ToServer, kind="protocol.Up"):
    """A client's answer to the ``Request`` of round t."""

    metrics: Annotated[dict[Name, Number], Field(max_length=50)] = {}
    """Scalars for the journal, such as the mean training loss."""


class ModelRequest(Request, kind="protocol.Model"):
    """Weights to train a copy of."""

    w: StateDict


class ModelReply(Reply, kind="protocol.Trained"):
    """A trained copy."""

    w: StateDict


class CensusRequest(ToClient, kind="protocol.Hello"):
    """The census: who are you? ``clients`` is the federation's size, known to the server.

    ``t``: the round after which the run goes on, 0 for a new one.
    """

    clients: Count


class ClientInfo(ToServer, kind="protocol.Peer"):
    """A client's answer to ``CensusRequest``."""

    values = 2 * MAX_CLASSES + 100

    n: Annotated[int, Field(ge=1, lt=2**40)]
    """Local training samples."""
    n_test: Count
    """Local test samples."""
    model: Name
    """Architecture, for example ``resnet18@0.5``."""
    size: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the global model's entries that it trains (``fiarse``)."""
    classes: Annotated[list[Count], Field(max_length=MAX_CLASSES)]
    """Class ids with at least one training sample, ascending."""
    counts: Annotated[list[Count], Field(max_length=MAX_CLASSES)] | None
    """Training samples of each class; None unless ``share-counts``."""
    task: Annotated[str, Field(max_length=100)]
    """Input shape and fingerprint of the class names, the same at every client."""
    public: Annotated[str, Field(max_length=100)]
    """Fingerprint of the public set as this client sees it; empty if the method has none."""
    version: Annotated[str, Field(max_length=1000)]
    """Version and fingerprint of the code this client runs, its plug-ins' included."""


class ScoreRequest(ToClient, kind="protocol.Ask"):
    """Score models on your own test share. ``w``: the global model's weights, if there is one.

    ``spec``: their architecture; empty: that of the model which this client shares.
    """

    spec: Name | Literal[""] = ""
    w: StateDict | None
    models: dict[str, StateDict] = {}
    """Further global models by name, scored in the same exchange."""


class StatisticsRequest(ToClient, kind="protocol.Measure"):
    """What do the BatchNorm layers of these models see of your training data?

    ``models``: by name, to be built as ``specs`` says; ``by_batch``: they normalise by the batch at
    hand, else by the running statistics that they come with.
    """

    specs: dict[str, str]
    models: dict[str, StateDict]
    by_batch: bool


class StatisticsReply(ToServer, kind="protocol.Statistics"):
    """Client k's answer to ``StatisticsRequest``, over its n training samples.

    ``models``: by name, float64 [C] under the names of the running statistics: the mean and the
    population variance of each channel of each BatchNorm layer's inputs.
    """

    n: Count
    models: Annotated[dict[str, StateDict], Field(max_length=100)]


class ScoreReply(ToServer, kind="protocol.Score"):
    """Client k's answer to ``ScoreRequest``: accuracies in [0, 1] on its n test samples."""

    n: Count
    accuracy: Share | None
    """Accuracy of the own model, or the global one where there is none; None without samples."""
    accuracy_global: Share | None
    """Accuracy of the global model; None if there is none, or no test samples."""
    accuracies: Annotated[dict[Name, Share], Field(max_length=100)] = {}
    """Accuracies of the further models of ``ScoreRequest`` by name; empty without test samples."""
