"""FDmeta: DS-FL's exchange about the public samples that the server is least sure of.

Liu, Zhang, Song, Letaief, "Communication-Efficient Federated Distillation with Active Data
Sampling", 2022 (arXiv 2203.06900).

**An interpretation.** Only the abstract could be read: a meta-algorithm for federated distillation,
and an active choice of the public samples. No claim about the paper can rest on this method.

What is computed here is DS-FL (its contract has the symbols) with the mean of the predictions as it
is, and with A_t chosen by the server:

    Ŷ_t = p̄ = mean_k p_k,    w digests Ŷ_t over A_t
    A_{t+1}: the ``public.subset`` samples with the largest entropy of σ(f(w; x)); A_1 by lot

The samples' numbers go down. With ``choose = "random"`` this is DS-FL with ``aggregation = "mean"``
to the bit.
"""

from typing import Literal, final

from common.methods.ds_fl import Agreeing, Down, Up

SERVER, CLIENT = "ds-fl", "ds-fl"


@final
class Options(Agreeing):
    """DS-FL's, with other defaults."""

    leaks = "predictions about public images"

    aggregation: Literal["era", "mean"] = "mean"
    """What becomes of the mean prediction: entropy reduction, or nothing."""
    choose: Literal["random", "entropy", "margin"] = "entropy"
    """The public samples of a round: by lot, or those of which the server's model is least sure."""
