"""FedProto, server half: average the clients' prototypes."""

from typing import final

from common.methods.fedproto import Options
from server_app.class_table import Prototypes


@final
class FedProto(Prototypes[Options]):
    """Server with P_c ← mean of the prototypes of the clients that have class c."""
