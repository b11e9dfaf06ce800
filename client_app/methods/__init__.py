"""The client halves, one file per method, named as its contract.

A half that serves several methods stands in the table under each of their names.
"""

from __future__ import annotations

from typing import Any

from client_app.handler import Handler
from client_app.methods.dl_mh import DLMH
from client_app.methods.dl_sh import DLSH
from client_app.methods.fedavg import FedAvg
from client_app.methods.fedgen import FedGen
from client_app.methods.fedgkd import FedGKD
from client_app.methods.fedgkt import FedGKT
from client_app.methods.fedin import FedIN
from client_app.methods.fedkf import FedKF
from client_app.methods.fedorion import FedORION
from client_app.methods.fedprox import FedProx
from client_app.methods.hetfedfl import HetFedFL
from client_app.methods.i_dl_mh import IDLMH
from client_app.methods.lwn import LWN
from client_app.methods.qffl import QFFL

HANDLERS: dict[str, type[Handler[Any]]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedin": FedIN,
    "dafl": FedAvg,
    "fedgkd": FedGKD,
    "fedgen": FedGen,
    "qffl": QFFL,
    "fedkf": FedKF,
    "fedorion": FedORION,
    "lwn": LWN,
    "hetfedfl": HetFedFL,
    "fedftg": FedProx,
    "fedftg-noise": FedProx,
    "dl-sh": DLSH,
    "dl-mh": DLMH,
    "i-dl-mh": IDLMH,
    "fedgkt": FedGKT,
}
