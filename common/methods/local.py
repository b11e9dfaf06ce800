"""Local training: nothing is exchanged, every client trains a model of its own.

The baseline of every comparison: what clients reach alone.

Round t: each selected client k goes on with its own model θ_k, of its own architecture, by E epochs
of CE(f(θ_k; x), y) on its own samples, and keeps it for good.

There is no global model. What is scored is θ_k on the client's own test share: in the summary the
clients' accuracies and, as ``fairness``, their mean (``amp``), variance and worst. For tables whose
other rows are scored on the whole test set, ``whole-test`` measures θ_k there.

Deviations: none. Every method of private models whose further terms have weight 0 must give the
same θ_k.
"""

from typing import final

from common.config import MethodOptions
from common.protocol import Down, Up


class OwnModels(MethodOptions):
    """Options of methods that have no models but the clients' own."""

    whole_test: bool = False
    """Each client also tests its model on the whole test set, if it has that; the journal has the
    mean as ``client_test_accuracy``."""


@final
class Options(OwnModels):
    """None of its own."""

    leaks = "models of clients alone, nothing is averaged"
