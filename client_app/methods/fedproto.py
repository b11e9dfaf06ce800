"""FedProto and FedTGP, client half: pull features to the server's prototypes."""

from typing import final

from client_app.bases.class_table import PrototypeLearner
from common.techniques.class_table import PrototypeOptions


@final
class FedProto(PrototypeLearner[PrototypeOptions]):
    """Client with the loss CE(h(f(x)), y) + λ · mean((f(x) − P_y)²)."""
