"""The client halves, one file per method, named as its contract.

A half that serves several methods stands in the table under each of their names.
"""

from __future__ import annotations

from typing import Any

from client_app.handler import Handler
from client_app.methods.fedavg import FedAvg
from client_app.methods.fedorion import FedORION
from client_app.methods.fedprox import FedProx

HANDLERS: dict[str, type[Handler[Any]]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedorion": FedORION,
}
