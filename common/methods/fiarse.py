"""FIARSE: clients train the entries of the global model that are largest by absolute value.

Wu et al., "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction", NeurIPS 2024.

Client k can hold the share s_k of the entries of w, which are the weights and biases of
convolutions and linear layers. θ is the ⌊s_k P⌋-th largest |w| of all P entries
(``scope = "global"``) or of those of each part of the network (``"stage"``), and
m(|w|) = 1(|w| ≥ θ); entries equal to θ are kept. The server sends θ, the kept entries with a
bitmap, and everything else whole: 4 s_k P + P/8 bytes.

The client trains with the weights w·m(|w|). θ is fixed for the round and m is taken anew at each
step, so an entry that falls below θ goes off and stays off. With ∂m/∂|w| := 2θ/(|w| + θ)² on kept
entries

    ∂L/∂w = ∂L/∂(w m) · (1 + 2θ|w|/(|w| + θ)²)    where |w| ≥ θ, else 0

Momentum and decay skip dropped entries too. It sends Δ_k = w − w_k on what it was sent, and the
server takes for every entry the unweighted mean over the clients that have it:

    w ← w − η_g Σ_k Δ_k / |{k: Δ_k ≠ 0}|

Entries that nobody has stay (``count = "mask"``: a client has what it was sent, changed or not).
What travels whole is averaged over all, unweighted. With all sizes 1 and θ = 0 it is FedAvg with
uniform weights, but for rounding.

Every size is scored as its own submodel. The run's accuracy is the mean over the sizes (the paper's
"Global"), and a client scores its own size (the paper's "Local").

Deviations, with their switches:
- In the released code BatchNorm has no running statistics, in the test neither. Ours travel and are
  averaged, so that every method can be scored alike; with ``running = false`` they do not, and
  ``score.bn`` is ``"batch"`` or ``"recalibrated"``.
- The released code counts a client where Δ_k ≠ 0; ``count = "mask"`` is what the text says.
- A client's size is of a list, or its node's own (``[node.K]`` ``size``); the paper assigns them in
  equal parts.
"""

from typing import Annotated, Literal, final

from jaxtyping import Float32, UInt8
from pydantic import Field
from torch import Tensor

from common import protocol
from common.config import Config, MethodOptions, not_allowed
from common.records import StateDict
from common.section import Positive


@final
class Options(MethodOptions):
    leaks = "parts that few clients may share"

    sizes: str = "1, 0.25, 0.0625, 0.015625"
    """s_k by client: comma-separated shares, client k gets entry k mod length."""
    scope: Literal["global", "stage"] = "global"
    """Entries compete with all others, or with those of their part of the network."""
    count: Literal["nonzero", "mask"] = "nonzero"
    """A client counts in the mean of an entry that it changed, or that it was sent."""
    server_lr: Positive = 1.0
    """η_g, the server's step."""
    running: bool = True
    """BatchNorm's running statistics travel and are averaged; the paper has none."""

    @property
    def shares(self) -> list[float]:
        """The sizes as numbers. Raises ``ValueError`` for what is no share."""
        try:
            found = [float(each) for each in self.sizes.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < size <= 1 for size in found):
            raise ValueError(
                f"fiarse.sizes = {self.sizes!r} is not allowed; it should be comma-separated "
                "numbers above 0 and at most 1"
            )
        return found

    def check(self, config: Config) -> None:
        """Raise ``ValueError`` for settings that do not go together."""
        assert self.shares
        why = 'method = "fiarse"'
        if config.oca.aggregate == "on":
            steps = f"{why}, which averages steps from the model of the round at hand"
            raise not_allowed("oca.aggregate", "on", steps, "off")
        if config.average.robust != "none":
            raise not_allowed("average.robust", config.average.robust, why, "none")
        if not self.running and config.score.bn == "running":
            bare = "fiarse.running = false, which leaves none"
            raise not_allowed("score.bn", "running", bare, "batch", "recalibrated")
        super().check(config)

    def allowed(self, config: Config, k: int) -> list[float]:
        """The sizes that client k may claim."""
        node = config.nodes.get(k)
        own = [node.size] if node is not None and node.size is not None else []
        return [*dict.fromkeys([*self.shares, *own])]


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@final
class Down(protocol.Down):
    theta: dict[str, Share]  #: θ of each group
    kept: Float32[Tensor, " K"]  #: entries with |w| ≥ θ
    bitmap: UInt8[Tensor, " B"]  #: which these are
    rest: StateDict  #: everything else


@final
class Up(protocol.Up):
    delta: Float32[Tensor, " K"]  #: Δ_k on the entries that were sent
    rest: StateDict  #: everything else after training
