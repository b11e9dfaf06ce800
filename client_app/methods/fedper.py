"""FedPer, client half: train the shared base and the own head together. FedBN uses it too."""

from typing import final

from client_app.bases.partly_shared import PartlyShared
from common.methods.fedper import PartlyShared as Options


@final
class FedPer(PartlyShared[Options]):
    """Client with the loss CE(f(φ_k, h_k; x), y)."""
