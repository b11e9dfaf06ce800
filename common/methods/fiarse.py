"""FIARSE: clients train the entries of the global model with the largest absolute values.

Wu et al., "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction", NeurIPS 2024.

Client k trains the share s_k of the entries of w; entries are the weights and biases of
convolutions and linear layers. θ is the ⌊s_k P⌋-th largest |w| of all P entries
(``scope = "global"``) or of the entries of each part of the network (``"stage"``). The mask is
m(|w|) = 1(|w| ≥ θ); entries equal to θ are kept. The server sends θ, the kept entries with a
bitmap, and all other tensors complete: 4 s_k P + P/8 bytes.

The client trains with the weights w·m(|w|). θ is fixed for the round and m is computed again at
each step, so an entry that falls below θ is dropped for the rest of the round. With
∂m/∂|w| := 2θ/(|w| + θ)² on kept entries

    ∂L/∂w = ∂L/∂(w m) · (1 + 2θ|w|/(|w| + θ)²)    where |w| ≥ θ, else 0

Momentum and weight decay skip dropped entries too. The client sends Δ_k = w − w_k for the entries
that it received. The server takes for every entry the unweighted mean over the clients that
changed it:

    w ← w − η_g Σ_k Δ_k / |{k: Δ_k ≠ 0}|

Entries that no client changed stay as they are. With ``count = "mask"`` the mean runs over the
clients that received the entry. Tensors sent complete are averaged over all clients, unweighted.
With all sizes 1 and θ = 0 the method equals FedAvg with uniform weights, except for rounding.

Every size is scored as a separate sub-model. The run's accuracy is the mean over the sizes (the
paper's "Global"), and a client scores its own size (the paper's "Local").

Deviations, with their switches:
- In the released code BatchNorm has no running statistics, also during tests. Here clients send
  them and the server averages them, so that all methods can be scored in the same way. With
  ``running = false`` there are none, and ``score.bn`` is ``"batch"`` or ``"recalibrated"``.
- The released code counts a client where Δ_k ≠ 0; the paper's text describes ``count = "mask"``.
- In the released code the mask is a boolean tensor, for which torch calls no backward function.
  The equation for ∂m/∂|w| therefore has no effect there, and ∂L/∂w = ∂L/∂(w m) · m
  (``gradient = "mask"``). With the equation (``"importance"``) the gradient of a kept entry is up
  to 1.5 times as large, at |w| = θ. The entries of small clients are near their θ.
- The released code divides the sum of the changes of a number in normalisation by the count of
  clients that changed it, as for entries (``norm-count = "nonzero"``). Here the mean is over all
  clients (``"all"``). A client whose channel is masked completely does not change the scale of its
  normalisation, so the released step is larger.
- A client's size comes from a list or from its node's settings (``[node.K]`` ``size``); the paper
  assigns the sizes in equal parts.
"""

from typing import Annotated, Literal, final

from jaxtyping import Float32, UInt8
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging
from common.settings.config import EVERY, Config, MethodOptions, not_allowed
from common.settings.marks import Mark
from common.settings.section import Positive


@final
class Options(MethodOptions):
    facts = Averaging.facts.but(
        down="the largest entries of w; normalisation whole",
        up="their change; normalisation whole",
        sends="its part of a network",
        leaves="its size; the change of the entries that it was sent, and normalisation whole",
        infers="the same as with `fedavg` on those entries; the others' changes stay unknown",
        networks="parts",
    )

    leaks = "parts that few clients may share"
    uses = ("finetune",)

    sizes: Annotated[str, Mark.TEXT] = "1, 0.25, 0.0625, 0.015625"
    """s_k of the clients: comma-separated shares; client k gets entry k mod length."""

    objectives = EVERY
    scope: Literal["global", "stage"] = "global"
    """Entries that share a threshold: all of the network, or those of one part of it."""
    count: Literal["nonzero", "mask"] = "nonzero"
    """Clients in the mean of an entry: those that changed it, or those that received it."""
    gradient: Literal["importance", "mask"] = "importance"
    """Gradient of a kept entry: with ∂m/∂|w|, or without it as in the released code."""
    norm_count: Literal["all", "nonzero"] = "all"
    """Clients in the mean of each number of the tensors sent complete, such as normalisation: all,
    or those that changed it."""
    server_lr: Positive = 1.0
    """η_g, the server's step."""
    running: bool = True
    """Whether BatchNorm has running statistics, which are averaged; the paper has none."""

    @property
    def shares(self) -> list[float]:
        """Sizes as numbers. Raises ``ValueError`` for a value outside (0, 1]."""
        try:
            shares = [float(size) for size in self.sizes.split(",")]
        except ValueError:
            shares = []
        if not shares or not all(0 < share <= 1 for share in shares):
            raise ValueError(
                f"fiarse.sizes = {self.sizes!r} is not allowed; it should be comma-separated "
                "numbers above 0 and at most 1"
            )
        return shares

    def check(self, config: Config) -> None:
        """Raise ``ValueError`` for settings that cannot be combined."""
        assert self.shares  # raises for sizes that are not allowed
        if not self.running and config.score.bn == "running":
            bare = "fiarse.running = false, without running statistics"
            raise not_allowed("score.bn", "running", bare, "batch", "recalibrated")
        super().check(config)

    def allowed(self, config: Config, k: int) -> list[float]:
        """Return the sizes that client k may report: those of the list and of its ``[node.K]``."""
        node = config.nodes.get(k)
        by_node = [node.size] if node is not None and node.size is not None else []
        return [*dict.fromkeys([*self.shares, *by_node])]


Threshold = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@final
class Request(protocol.Request, kind="fiarse.Down"):
    """Request with the client's sub-model."""

    theta: dict[str, Threshold]  #: θ of each group
    kept: Float32[Tensor, " K"]  #: entries with |w| ≥ θ
    bitmap: UInt8[Tensor, " B"]  #: one bit for each of the P entries: whether it is kept
    rest: StateDict  #: all other tensors


@final
class Reply(protocol.Reply, kind="fiarse.Up"):
    """Reply with the client's update."""

    delta: Float32[Tensor, " K"]  #: Δ_k on the entries of the request
    rest: StateDict  #: all other tensors after training
