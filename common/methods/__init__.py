"""The contracts, one file per method: paper, symbols, Config, messages, deviations.

A method's server half and client half have the same file name in ``server_app/methods`` and
``client_app/methods``.
"""

from __future__ import annotations

from common.config import Section
from common.methods import (
    dafl,
    dl_mh,
    dl_sh,
    fedavg,
    fedftg,
    fedftg_noise,
    fedgen,
    fedgkd,
    fedgkt,
    fedin,
    fedkf,
    fedorion,
    fedprox,
    hetfedfl,
    i_dl_mh,
    lwn,
    qffl,
)

CONFIGS: dict[str, type[Section]] = {
    "fedavg": fedavg.Config,
    "fedprox": fedprox.Config,
    "fedin": fedin.Config,
    "dafl": dafl.Config,
    "fedgkd": fedgkd.Config,
    "fedgen": fedgen.Config,
    "qffl": qffl.Config,
    "fedkf": fedkf.Config,
    "fedorion": fedorion.Config,
    "lwn": lwn.Config,
    "hetfedfl": hetfedfl.Config,
    "fedftg": fedftg.Config,
    "fedftg-noise": fedftg_noise.Config,
    "dl-sh": dl_sh.Config,
    "dl-mh": dl_mh.Config,
    "i-dl-mh": i_dl_mh.Config,
    "fedgkt": fedgkt.Config,
}
