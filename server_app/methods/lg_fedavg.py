"""LG-FedAvg, server half: average the clients' heads."""

from typing import final

from common.exchange import tree
from common.exchange.records import Records, StateDict
from common.methods.lg_fedavg import Options
from common.models.classifier import Classifier
from server_app.head_mean import HeadMean


@final
class State(Records, kind="lg_fedavg.State"):
    head: StateDict


@final
class LGFedAvg(HeadMean[Options]):
    """Server with h ← Σ_k p_k h_k."""

    state_type = State

    def parts(self, net: Classifier) -> StateDict:
        return tree.snapshot(net.head)

    def weights_to_score(self) -> StateDict:
        return self.head
