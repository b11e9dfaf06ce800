"""FedAvg, client half: train the global model on local data."""

from typing import final

from client_app.copy import Copy
from common.methods.fedavg import Averaging, Down, Up


@final
class FedAvg(Copy[Averaging, Down]):
    """Copies, trained by cross-entropy."""

    receives, answers = Down, Up
