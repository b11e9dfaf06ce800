"""The contracts, one file per method: paper, symbols, Config, messages, deviations.

A method's server half and client half have the same file name in ``server_app/methods`` and
``client_app/methods``.
"""

from __future__ import annotations

from common.config import Section
from common.methods import fedavg, fedorion, fedprox

CONFIGS: dict[str, type[Section]] = {
    "fedavg": fedavg.Config,
    "fedprox": fedprox.Config,
    "fedorion": fedorion.Config,
}
