"""Base class of server halves that compute the mean update of adapters of several ranks."""

from abc import ABC
from collections.abc import Sequence

from torch import Tensor

from common import models
from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.flora import Reply
from common.models.adapters import W, pairs
from server_app.global_model import GlobalModel
from server_app.method import Client, O, Replies


class DenseUpdate(GlobalModel[O, Reply], ABC):
    """Server with the base and an update ΔW of each layer, which it scores."""

    def trains(self, client: Client) -> str:
        return client.architecture

    def check(self, client: Client, reply: Reply) -> None:
        spec = self.trains(client)
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def scaled(self, replies: Replies[Reply]) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Return A_k and s_k B_k of each layer, in the order of the replies."""
        layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for client, reply in replies:
            s = self.scale(self.trains(client))
            for layer, a, b in pairs(reply.w):
                layers.setdefault(layer, []).append((a, s * b))
        return layers

    def scale(self, spec: str) -> float:
        """Return s of an architecture's adapters."""
        return self.task.adapter.scale_of(models.rank(spec))

    def shares(self, replies: Replies[Reply]) -> Sequence[float]:
        """Return p_k, which add up to 1."""
        p = self.config.average.shares(replies.sizes)
        return [float(share) / sum(p) for share in p]

    def means(self, replies: Replies[Reply]) -> StateDict:
        """Return the mean of all entries but the adapters'."""
        rest = [name for name in self.w if not name.endswith(f".{W}")]
        return tree.mean([tree.cut(reply.w, rest) for _, reply in replies], self.shares(replies))
