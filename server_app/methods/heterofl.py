"""HeteroFL and FedRolex, server half: choose each client's part for ``aggregation/width.py``."""

from collections.abc import Callable
from functools import cache
from typing import final

from common import models
from common.methods.heterofl import Partial, Reply, Request
from common.techniques.widths import Submodel
from server_app.global_model import Averaged
from server_app.method import Client


@final
class HeteroFL(Averaged[Partial, Reply]):
    """Server with w[e] ← Σ_{k has e} w_k[e] / |{k has e}|."""

    reply_type, widest = Reply, True

    def prepare(self) -> None:
        super().prepare()
        self.by_width = self.options.by_width
        self.t = 1  # the census also looks at what clients train

    def architectures(self) -> list[str]:
        redrawn = self.options.rates == "redrawn"
        return sorted(set(self.config.fleet)) if redrawn else super().architectures()

    def taken(self, client: Client, t: int) -> Submodel:
        return self.options.taken(self.task, client.info, t)

    def trains(self, client: Client) -> str:
        return self.taken(client, self.t).spec

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return requests without weights; ``aggregation/width.py`` adds each client's block."""
        self.t = t
        largest = max(models.parse(spec)[1] for spec in self.architectures())

        @cache
        def payload(spec: str) -> Request:
            return Request(w={}, spec=spec, rate=models.parse(spec)[1] / largest)

        return lambda client: payload(self.trains(client))
