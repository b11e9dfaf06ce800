"""FedAvg: federated averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
Algorithm 1.

Round t: the server sends w to the selected clients S_t; each trains E epochs of SGD from w on its
own n_k samples and returns w_k; the server sets

    w ← Σ_{k∈S_t} p_k w_k

with p_k = n_k / Σ n under ``average.weights = "samples"`` and 1/|S_t| under ``"uniform"``.

Every client trains the global architecture, whatever its entry in the fleet. A client stores no
state.

Two options extend this and every other averaging method:
- ``oca.aggregate = "on"``: the server stores every client's latest w_k and also takes the same mean
  over all of them. This is the OCA model ŵ (overall clients aggregated; FedKF, section IV-A,
  technique T1). The server still sends the ACA model w (active clients aggregated). ŵ is the run's
  model, and both are scored (``server_app/aggregation/cached.py``).
- ``average.across`` (methods that list the value in ``schemes``): every client trains its own
  architecture, and the run's accuracy is the mean over the architectures' models.
  - ``layerwise`` averages each layer over all clients that have it. The server holds the largest
    network, and all other networks must be its sub-models.
  - ``depth`` does the same, except for each size's own layers
    (``server_app/aggregation/depth.py``).
  - ``same`` averages only within equal architectures (``server_app/aggregation/matching.py``).
  - ``width`` averages each number over all clients that have it. The networks are one architecture
    in several widths, each the leading block of the widest (``server_app/aggregation/width.py``).

Deviations: the paper has no BatchNorm. Floating-point buffers are averaged like parameters
(``average.bn-buffers``), as in all implementations that we examined. For integer counters the
aggregate is the maximum.
"""

from typing import ClassVar, final

from common.data import divide
from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.exchange.tree import check_nested
from common.models.blocks import check_blocks
from common.settings.config import EVERY, Config, MethodOptions, Required, not_allowed
from common.settings.facts import Facts
from common.settings.options import KRUM, WHOLE
from common.techniques.adapters import check_one_base, check_scales
from common.techniques.widths import check_widths
from common.training.task import Task

AVERAGED = ("average", "oca", "finetune", "privacy", "secure")
"""Settings tables of a method that uses the clients' models only for the mean."""


FOR_PARTS = ("none", "median", "trimmed", "clip")
"""Values of ``average.robust`` that work where clients have parts of one network."""
NO_WHOLE = ", which has no whole model at the server"


class Averaging(MethodOptions):
    """Options of methods whose global model is a mean of the clients' models."""

    facts = Facts(
        down="w",
        up="w",
        kept="",
        sends="a network",
        leaves="the weights and BatchNorm statistics of the trained model",
        infers="weights before and after training give the update, and updates give away class "
        "proportions, membership and, for small batches, images; BatchNorm statistics are means "
        "and variances of features",
        whole="w",
        own="",
        part="whole",
        rounds="many",
        public="none",
        networks="equal",
        asynchronous="mean",
    )

    uses: ClassVar[tuple[str, ...]] = ("average", "oca", "finetune")
    schemes: ClassVar[tuple[str, ...]] = ("none",)
    """Values of ``average.across`` that this method allows."""

    def check(self, config: Config) -> None:
        super().check(config)
        if (across := config.average.across) not in self.schemes:
            why = f'method = "{config.run.method}"'
            raise not_allowed("average.across", across, why, *self.schemes)
        robust = config.average.robust
        if robust in WHOLE and across not in ("none", "same"):
            why = f'average.across = "{across}": it compares whole models of one architecture'
            raise not_allowed("average.robust", robust, why, *FOR_PARTS)

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        average = task.config.average
        if average.robust == "fltrust":
            divided = divide(task.config.data, task.config.partition_seed)
            if divided.labels is None:
                raise ValueError(
                    'average.robust = "fltrust" needs a labelled public set at the server: set '
                    "data.public, or data.public-name to a data set with the task's classes"
                )
        states = {spec: task.expected(spec) for spec in specs}
        if average.across in ("layerwise", "depth"):
            check_one_base(task, specs)
            check_nested(states, average.across)
            check_blocks(states, average)
        elif average.across == "width":
            check_widths(states)
            check_scales(task, specs)


class PartAveraging(Averaging):
    """Options of methods whose server averages parts or updates, not whole models."""

    uses: ClassVar[tuple[str, ...]] = ("average",)
    requires = {
        "average.robust": Required(*FOR_PARTS, why=NO_WHOLE),
        "buffer.cache": Required(False, why=NO_WHOLE),
        "oca.aggregate": Required("off", why=NO_WHOLE),
    }


class PredictorPart(Averaging):
    """Options of methods whose mean w is a part of every client's predictor, and no model alone."""

    facts = Averaging.facts.but(whole="", part="part")

    uses: ClassVar[tuple[str, ...]] = ("average", "finetune")
    leaks = "only scores of clients' own models, which have no noise"
    requires = {
        "average.robust": Required(*FOR_PARTS, *KRUM, "geometric-median", why=NO_WHOLE),
        "oca.aggregate": Required("off", why=NO_WHOLE),
    }


class Copying(Averaging):
    """Options of FedAvg and of methods that change only the clients' loss."""

    facts = Averaging.facts.but(networks="parts")

    uses = AVERAGED
    schemes = ("none", "layerwise", "same", "depth", "width")


@final
class Options(Copying):
    """Options of FedAvg."""

    objectives = EVERY
