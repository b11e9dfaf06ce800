"""FedKF, server half: the means over the active clients and over everybody's latest upload.

ŵ is the work of ``server_app/combine/oca.py``.
"""

from __future__ import annotations

from typing import final

from common.methods.fedkf import Down, Options, Up
from server_app.global_model import Averaged


@final
class FedKF(Averaged[Options, Up]):
    """w ← Σ_{k∈S_t} (n_k/Σn) w_k (ACA);  ŵ ← the same over every client's last upload (OCA)."""

    answers = Up

    def down(self, t: int) -> Down:
        teaches = t > 1 and self.options.teacher == "oca"
        return Down(w=self.w, w_hat=self.flat(self.overall) if teaches else None)
