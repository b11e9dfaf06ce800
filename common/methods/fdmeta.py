"""FDmeta: DS-FL on the public samples with the least certain predictions of the server.

Liu, Zhang, Song, Letaief, "Communication-Efficient Federated Distillation with Active Data
Sampling", 2022 (arXiv 2203.06900).

**An interpretation.** Only the abstract was available: a meta-algorithm for federated distillation
with an active choice of the public samples. Do not draw conclusions about the paper from this
method.

This method is DS-FL (its contract defines the symbols) with the unchanged mean of the predictions,
and with A_t chosen by the server:

    Ŷ_t = p̄ = mean_k p_k,    w distils Ŷ_t over A_t
    A_{t+1}: the ``public.subset`` samples with the largest entropy of σ(f(w; x)); A_1 is random

The request carries the indices of the samples. With ``choose = "random"`` the results equal DS-FL
with ``aggregation = "mean"`` to the bit.
"""

from typing import Literal, final

from common.methods.ds_fl import Agreeing, Reply, Request

SERVER, CLIENT = "ds-fl", "ds-fl"


@final
class Options(Agreeing):
    """Options of DS-FL with other defaults."""

    aggregation: Literal["era", "mean"] = "mean"
    """Targets from the mean prediction: sharpened by entropy reduction, or unchanged."""
    choose: Literal["random", "entropy", "margin"] = "entropy"
    """Public samples of a round: random, or those least certain for the server's model."""
