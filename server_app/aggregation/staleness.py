"""Updates of older versions as updates of the newest one, for asynchronous rounds.

Client k trains w_v of version v, and the server's model is w when its w_k arrives. The update then
counts as the model

    w + s (w_k − w_v)        FedBuff (Nguyen et al., AISTATS 2022)
    (1 − s) w + s w_k        FedAsync (Xie et al., 2019), with s = α · s(τ): ``buffer.mixing``
    w + H + Δ_k − h_k        CA2FL, with Δ_k = w_k − w_v: ``server_app/aggregation/calibration.py``

entry by entry, so that every mean of models adds the mean of the weighted changes to w. An update
of the newest version with weight 1 is w_k itself, so that it has the bits of a synchronous round.

Deviation: the papers have no BatchNorm. Its running statistics are mixed in both cases, since a
variance plus a change of an older one can be negative. Integer counters are the client's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from common.exchange import tree
from common.exchange.records import StateDict


@final
@dataclass(frozen=True)
class Discount:
    """Weight ``s`` of an update, and whether its model is mixed or its change is added.

    ``plus``: what is added besides, by entry, float64.
    """

    s: float
    mixes: bool
    plus: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(
        self, newest: Mapping[str, Tensor], sent: Mapping[str, Tensor], trained: StateDict
    ) -> StateDict:
        """Return ``trained`` as a model of the newest version; sums run in float64.

        ``newest``, ``sent``: w and w_v, with at least the entries of ``trained``.
        """
        moved = {}
        for name, value in trained.items():
            if not value.is_floating_point():
                moved[name] = value
                continue
            mixes = self.mixes or name.endswith(tree.STATISTICS)
            start, base = newest[name].double(), newest[name] if mixes else sent[name]
            change = self.s * (value.double() - base.double())
            if name in self.plus:
                change = change + self.plus[name]
            moved[name] = (start + change).to(value.dtype)
        return moved
