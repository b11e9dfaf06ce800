"""Settings of the virtual clock: devices by profile, and how long their jobs take (``[clock]``).

A run with a profile for every client has a clock. It counts operations and bytes, and converts them
to seconds on these devices, so that the same settings and seed give the same times everywhere.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.settings.marks import Form, Mark, Names, OfEach, Place, Unprotected
from common.settings.section import Fraction, NonNegative, Section

DEADLINE = r"^$|^[0-9]{1,9}(\.[0-9]+)?$|^q(0?\.[0-9]+|1)$"
ALL = "the noise is made for all selected clients"
LATE = "a late client would have shares of the others' masks"
Network = Literal["wifi", "lan", "4g"]


Amount = Annotated[float | None, Field(ge=1, le=1e18)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


@final
class Profile(Section):
    """Properties of a device, ``[profile.NAME]``; keys that are left out are those of a preset of
    the same name, or of ``base``."""

    base: Annotated[str | None, Mark.TEXT] = None
    """Preset or profile whose values count for keys that are left out."""
    flops: Amount = None
    """F, peak float32 operations per second."""
    efficiency: Annotated[float | None, Field(ge=1e-6, le=1)] = None
    """e, share of F that training reaches."""
    efficiency_by: Annotated[
        str | None,
        Field(pattern=r"^[^=,]+=[0-9.e-]+(,[^=,]+=[0-9.e-]+)*$", max_length=1000),
        Form("PREFIX=SHARE of architectures, or several with commas between them"),
        Mark.TEXT,
    ] = None
    """e by architecture: ``resnet=0.32,mobilenet=0.05``; the longest matching prefix counts."""
    step_overhead: Seconds | None = None
    """o, seconds of each optimiser step beside its operations."""
    memory: Amount = None
    """Memory in bytes."""
    memory_bandwidth: Amount = None
    """b_m, bytes per second between processor and memory; without it, reading and writing weights
    takes no time."""
    network: Network | None = None
    """Preset of ``down``, ``up`` and ``latency``."""
    down: Amount = None
    """Bits per second from the server."""
    up: Amount = None
    """Bits per second to the server."""
    latency: Seconds | None = None
    """λ, seconds of one way between client and server."""
    power: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    """Watts while training."""
    radio_power: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    """Watts while sending and receiving."""
    available: Annotated[str | None, Place()] = None
    """File of availability traces (.jsonl), by client; without one a device is always available."""


@final
class Clock(Section):
    """Settings of the virtual clock, for runs with ``profiles``."""

    jitter: Annotated[float, Field(ge=0, le=3)] = 0.0
    """σ of a random factor exp(σz − σ²/2), z ~ N(0, 1), on the compute time of each job."""
    bandwidth_sigma: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Standard deviation of a job's bandwidths, as a share of their mean; at least a tenth of the
    mean remains."""
    scores: bool = False
    """Count the time in which clients receive and send messages for scores."""
    server: Annotated[str, Mark.TEXT] = ""
    """Profile of the server, for the time of its step; empty: the step takes no time."""
    deadline: Annotated[
        str,
        Field(pattern=DEADLINE),
        Form("seconds, or a quantile of predicted times such as 'q.8'"),
        Mark.TEXT,
        Unprotected(ALL, ""),
        OfEach(LATE, ""),
    ] = ""
    """Seconds after which a round ends: later replies are failures. ``q.8``: the quantile 0.8 of
    the selected clients' predicted times. Empty: a round waits for all."""
    over_selection: Annotated[
        float, Field(ge=1, le=10), Unprotected(ALL, 1.0), OfEach(LATE, 1.0)
    ] = 1.0
    """x: ⌈x · per-round⌉ clients are selected, and the first per-round replies count."""
    loss: Annotated[float, Field(ge=0, lt=1), Unprotected(ALL, 0.0)] = 0.0
    """Probability that a selected client's job is lost: it trains nothing and never replies."""
    notice: Seconds = 60.0
    """Seconds after which the server notices a lost job, without a deadline."""
    partial: Annotated[
        bool, Unprotected(ALL, False), OfEach("clients of one sum do the same work", False)
    ] = False
    """A client takes the most local steps that fit the deadline, at least one."""
    interrupted: Literal["lost", "paused"] = "lost"
    """Jobs that reach the end of the interval in which a device is available: ``lost``, or
    ``paused`` until its next interval."""
    fit: Literal["off", "refuse", "choose"] = "off"
    """Whether a client's network must fit the memory of its device. ``refuse``: end the run before
    it starts. ``choose``: give the client the largest of ``choices`` that fits."""
    choices: Annotated[str, Names("models")] = ""
    """``choose``: comma-separated architectures, or a preset of fleets; empty: the fleet."""
    memory_share: Fraction = 0.5
    """Share of a device's memory that training may take; the system needs the rest."""
    fit_seconds: NonNegative = 0.0
    """``fit``: maximum predicted seconds of a client's job; 0: no limit."""
    fit_mb: NonNegative = 0.0
    """``fit``: maximum of a client's messages in a round, both ways, in 10⁶ bytes; 0: no limit."""

    def check(self) -> None:
        """Raise ``ValueError``, one line, for settings that do not go together."""
        if self.partial and not self.deadline:
            raise ValueError("clock.partial = true needs a clock.deadline")
        if self.choices and self.fit != "choose":
            raise ValueError(
                f'clock.choices = {self.choices!r} is not allowed with clock.fit = "{self.fit}"; '
                'allowed: "choose"'
            )
