"""The server halves, one file per method, named as its contract.

A half that serves several methods stands in the table under each of their names.
"""

from __future__ import annotations

from typing import Any

from server_app.method import Method
from server_app.methods.fedavg import FedAvg
from server_app.methods.fedorion import FedORION

METHODS: dict[str, type[Method[Any]]] = {
    "fedavg": FedAvg,
    "fedprox": FedAvg,
    "fedorion": FedORION,
}
