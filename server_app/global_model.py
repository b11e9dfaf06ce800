"""Base classes of server halves with a global model, as methods and plug-ins import them.

``GlobalModel`` sends and scores w. ``Averaged`` averages the models that clients trained; a method
overrides the combination or a later step. In ``PredictorPart`` the mean is no model by itself.
"""

from abc import ABC

from server_app.aggregation.matching import T
from server_app.global_weights import GlobalModel, Weights
from server_app.method import Client, O
from server_app.methods.fedavg import Averaged

__all__ = ["Averaged", "GlobalModel", "PredictorPart", "Weights"]


class PredictorPart(Averaged[O, T], ABC):
    """Base class of methods whose mean w is a part of every client's predictor, and no model alone.

    Clients complete w with their own parts when they score it.
    """

    def check_architectures(self) -> None:
        self.options.check_fleet(self.task, tuple(self.architectures()))

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    def model(self) -> None:
        return None
