"""The server halves, one file per method, named as its contract.

A half that serves several methods stands in the table under each of their names.
"""

from __future__ import annotations

from typing import Any

from server_app.method import Method
from server_app.methods.dafl import DAFL
from server_app.methods.dl_mh import DLMH
from server_app.methods.dl_sh import DLSH
from server_app.methods.fedavg import FedAvg
from server_app.methods.fedftg import FedFTG
from server_app.methods.fedftg_noise import FedFTGNoise
from server_app.methods.fedgen import FedGen
from server_app.methods.fedgkd import FedGKD
from server_app.methods.fedgkt import FedGKT
from server_app.methods.fedin import FedIN
from server_app.methods.fedkf import FedKF
from server_app.methods.fedorion import FedORION
from server_app.methods.hetfedfl import HetFedFL
from server_app.methods.i_dl_mh import IDLMH
from server_app.methods.lwn import LWN
from server_app.methods.qffl import QFFL

METHODS: dict[str, type[Method[Any]]] = {
    "fedavg": FedAvg,
    "fedprox": FedAvg,
    "fedin": FedIN,
    "dafl": DAFL,
    "fedgkd": FedGKD,
    "fedgen": FedGen,
    "qffl": QFFL,
    "fedkf": FedKF,
    "fedorion": FedORION,
    "lwn": LWN,
    "hetfedfl": HetFedFL,
    "fedftg": FedFTG,
    "fedftg-noise": FedFTGNoise,
    "dl-sh": DLSH,
    "dl-mh": DLMH,
    "i-dl-mh": IDLMH,
    "fedgkt": FedGKT,
}
