"""Settings of asynchronous rounds (``mode = "buffered"``): a step whenever K updates have arrived.

FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
FedAsync: Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019.
CA2FL: Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached
Update Calibration", ICLR 2024.
"""

from typing import Annotated, final

from pydantic import Field

from common.settings.marks import Form, Mark
from common.settings.section import Positive, Section

DISCOUNT = r"^(constant|sqrt|poly:[0-9]+(\.[0-9]+)?|hinge:[0-9]+(\.[0-9]+)?,[0-9]+(\.[0-9]+)?)$"

LEAST = 1e-30  #: smallest weight of an update


@final
class Buffer(Section):
    """Settings of the buffer of updates, for runs with ``mode = "buffered"``."""

    size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """K, number of updates in a step of the server; 0: a fifth of ``concurrency``, at least 2, or 1
    with ``mixing``."""
    concurrency: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """C, number of clients that train at the same time; 0: ``per-round``, or else all."""
    staleness: Annotated[
        str,
        Field(pattern=DISCOUNT, max_length=60),
        Form("constant, sqrt, poly:A or hinge:A,B with numbers A and B"),
        Mark.TEXT,
    ] = "sqrt"
    """Weight s(τ) of an update that is τ steps old. ``constant``: 1. ``sqrt``: 1/√(1 + τ).
    ``poly:A``: (1 + τ)^−A. ``hinge:A,B``: 1 for τ ≤ B, else 1/(A (τ − B) + 1)."""
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """α of FedAsync: the step goes the share α · s(τ) of the way to a client's model. 0: it adds
    s(τ) of the client's change of the older model, as in FedBuff."""
    cache: bool = False
    """Whether a step adds the mean of the newest updates of all clients, and of each update in the
    buffer only its difference from the client's one before, as in CA2FL."""
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Maximum τ; an older update is a failure, and another client takes its place. 0: none."""
    wait: Annotated[Positive, Mark.FREE] = 120.0
    """Seconds until a run ends in which fewer clients than K take part and none trains."""

    def discount(self, staleness: int) -> float:
        """Return the weight of an update that is ``staleness`` steps old, in (0, 1].

        It is s(τ), or α · s(τ) with ``mixing``.
        """
        rule, _, text = self.staleness.partition(":")
        numbers = [float(number) for number in text.split(",") if number]
        if rule == "constant":
            s = 1.0
        elif rule == "hinge":
            a, b = numbers
            s = 1.0 if staleness <= b else 1 / (a * (staleness - b) + 1)
        else:
            s = (1.0 + staleness) ** -(numbers[0] if numbers else 0.5)
        return max((self.mixing or 1.0) * s, LEAST)

    def sizes(self, per_round: int, clients: int) -> tuple[int, int]:
        """Return K and C for a roster of ``clients``.

        Raises ``ValueError``, one line, if the roster has fewer clients than either.
        """
        concurrency = self.concurrency or per_round or clients
        size = self.size or (1 if self.mixing else max(2, concurrency // 5))
        for key, least in (("size", size), ("concurrency", concurrency)):
            if least > clients:
                raise ValueError(
                    f"buffer.{key} = {least} is more than the {clients} clients of the roster"
                )
        return size, concurrency
