"""I-DL-MH: DL-MH, after which the clients learn from the server.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.3, Algorithms 5 and 6.

After the server's distillation θ is M_tgt(X_dist) [N, C] (``reward = "model"``) or Y_g
(``"ensemble"``; the paper finds both alike). Every client that wants it, its node's ``incentive``
(true or false) or else the run's ``opt-in``, gets in a second exchange of the round

    masked: y_k = argmax_{j∈d} θ[k][j], as an index into its d             (Algorithm 5, 9-36)
    full:   all of θ

and goes on from its M_i with ``incentive-epochs`` epochs on X_dist (Algorithm 6): CE on the labels
y, or, its head widened to C nodes (the rows of its classes kept, the others new), CE on the
distributions θ. It reports the accuracy on the whole test set before and after.

``masked`` is the algorithm as printed, hard labels among the client's own classes. A client of two
classes of ten can then never be right on more than a fifth of the test set, and of the public set
it learns four fifths wrong: the paper's claim of +225 % needs ``full``, which the text also allows.

A round later the client's M_i is what the incentive made of it (under ``full`` its rows of d).

Deviations: as DL-MH; in addition
- Algorithm 5, line 12, starts the search from θ[k][0]; it must be θ[k][d[0]].
- Line 21 keeps the largest value as if to send it; what the client needs is the label.
"""

from typing import Literal, final

from common.methods.dl_mh import Down, Masking, Schemed
from common.section import AtLeastOne


@final
class Options(Masking):
    leaks = "predictions about public images"

    incentive: Literal["masked", "full"] = "full"
    """Labels among the client's own classes, or all of θ."""
    reward: Literal["model", "ensemble"] = "model"
    """θ: what M_tgt says about the public set, or Y_g."""
    incentive_epochs: AtLeastOne = 5
    """Epochs of the client on what it gets."""
    opt_in: bool = True
    """Whether clients whose node does not say take the incentive."""


@final
class Up(Schemed):
    incentive: bool  #: the client wants the second exchange
