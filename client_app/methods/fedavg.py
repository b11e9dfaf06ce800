"""FedAvg, client half: train the global model on local data."""

from typing import final

from client_app.bases.global_copy import GlobalCopy
from common.methods.fedavg import Averaging, Request


@final
class FedAvg(GlobalCopy[Averaging, Request]):
    """Client that trains a copy of w on cross-entropy."""
