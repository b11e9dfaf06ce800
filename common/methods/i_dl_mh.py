"""I-DL-MH: DL-MH with a second exchange in which clients learn from the server.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.3, Algorithms 5 and 6.

After the server's distillation θ is M_tgt(X_dist) [N, C] (``reward = "model"``) or Y_g
(``"ensemble"``; similar results in the paper). The node's ``incentive``, or else the run's
``opt-in``, decides whether a client takes part in a second exchange of the round. It receives

    masked: y_k = argmax_{j∈d} θ[k][j], as an index into its d             (Algorithm 5, 9-36)
    full:   all of θ

and continues from M_i with ``incentive-epochs`` epochs on X_dist (Algorithm 6). ``masked``: CE on
the labels y. ``full``: CE on the distributions θ, with the head extended to C nodes; the rows of
its classes are kept and the others are new. It reports its accuracy on the whole test set before
and after.

``masked`` is the algorithm as printed, with hard labels among the client's own classes. A client
with two of ten classes can then be correct on at most a fifth of the test set, and four fifths of
its public labels are wrong. The paper's claim of +225 % needs ``full``, which the text also allows.

In the next round M_i is the model after the incentive (under ``full`` with its rows of d).

Deviations: as DL-MH; in addition
- Algorithm 5, line 12, starts the search from θ[k][0]; it must be θ[k][d[0]].
- Line 21 keeps the largest value; the client needs the label instead.
"""

from typing import Annotated, Literal, final

from common.methods.dl_mh import Masking, Request, SchemeReply
from common.settings.marks import Mark
from common.settings.section import AtLeastOne


@final
class Options(Masking):
    facts = Masking.facts.but(
        leaves="the same as `dl-mh`, whether it wants a reward, and accuracies on the whole test "
        "set before and after",
    )

    incentive: Literal["masked", "full"] = "full"
    """Targets that clients receive: labels among their own classes, or all of θ."""
    reward: Literal["model", "ensemble"] = "model"
    """θ: predictions of M_tgt for the public set, or Y_g."""
    incentive_epochs: Annotated[AtLeastOne, Mark.CLIENT_EPOCHS] = 5
    """Epochs of a client on these targets."""
    opt_in: bool = True
    """Whether clients whose node has no ``incentive`` setting take part."""


@final
class Reply(SchemeReply, kind="i_dl_mh.Up"):
    incentive: bool  #: whether the client takes part in the second exchange
