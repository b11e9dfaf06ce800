"""HeteroFL and FedRolex, server half: who trains what; ``combine/width.py`` cuts and pastes."""

from collections.abc import Callable
from functools import cache
from typing import final

from common import models
from common.methods.heterofl import Down, Partial, Up
from common.widths import Taken
from server_app.global_model import Averaged
from server_app.method import Client


@final
class HeteroFL(Averaged[Partial, Up]):
    """w[e] ← Σ_{k has e} w_k[e] / |{k has e}|."""

    answers, widest = Up, True

    def prepare(self) -> None:
        super().prepare()
        self.by_width = self.options.by_width

    def architectures(self) -> list[str]:
        redrawn = self.options.rates == "redrawn"
        return sorted(set(self.config.fleet)) if redrawn else super().architectures()

    def taken(self, client: Client, t: int) -> Taken:
        return self.options.taken(self.task, client.peer, t)

    def trains(self, client: Client) -> str:
        return self.taken(client, self.t).spec

    def down(self, t: int) -> Callable[[Client], Down]:
        """Without the block of w, which is cut in front of this."""
        self.t = t
        most = max(models.parse(spec)[1] for spec in self.architectures())

        @cache
        def payload(spec: str) -> Down:
            return Down(w={}, spec=spec, rate=models.parse(spec)[1] / most)

        return lambda client: payload(self.trains(client))
