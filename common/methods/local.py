"""Local training: every client trains its own model, without exchange.

This is the baseline of every comparison.

Round t: each selected client k trains its own model θ_k, of its own architecture, for E epochs of
CE(f(θ_k; x), y) on its own samples, and stores it across rounds.

There is no global model. Each client scores θ_k on its own test share, which is the run's primary
score. The summary has the clients' accuracies and, as ``personal``, their means, standard deviation
and worst values. ``whole-test`` also scores θ_k on the whole test set, for comparison with other
methods.

Deviations: none. Every method of private models whose further terms have weight 0 must give the
same θ_k.
"""

from typing import final

from common.exchange.protocol import Reply, Request
from common.settings.config import EVERY, OwnModels


@final
class Options(OwnModels):
    """Options of local training."""

    objectives = EVERY

    facts = OwnModels.facts.but(
        asynchronous="nothing",
        infers="how well the client learns; with `local.whole-test`, also on the whole test set",
    )

    leaks = "models of single clients, nothing is averaged"
