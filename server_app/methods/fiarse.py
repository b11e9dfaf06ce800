"""FIARSE, server half: send each client the largest entries and average their changes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import final

import torch

from common.exchange import protocol, tree
from common.exchange.records import StateDict
from common.methods.fiarse import Options, Reply, Request
from common.models.batchnorm import statistics
from common.models.classifier import Classifier
from common.techniques import importance
from common.techniques.importance import Masks
from server_app.aggregation.staleness import Discount
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class FIARSE(GlobalModel[Options, Reply]):
    """Server with w ← w − η_g Σ_k Δ_k / |{k has the entry}|."""

    def prepare(self) -> None:
        super().prepare()
        self.entries = importance.entries(self.net)
        self.groups = importance.groups(self.entries, self.options.scope)
        unused = set() if self.options.running else set(statistics(self.net))
        self.complete = [name for name in self.w if name not in {*self.entries, *unused}]

    def admit(self, client: Client) -> None:
        super().admit(client)
        size, allowed = client.info.size, self.options.allowed(self.config, client.k)
        if size not in allowed:
            sizes = ", ".join(f"{share:g}" for share in allowed)
            raise ValueError(
                f"census: client {client.k} claims the size {size:g}; configured are {sizes}"
            )

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return a function of the client; equal payloads are one object, to pack them once."""

        @cache
        def payload(size: float) -> Request:
            theta, masks = self._extract(size)
            kept, bits = importance.kept(self.w, masks), importance.bitmap(masks)
            rest = tree.cut(self.w, self.complete)
            return Request(theta=theta, kept=kept, bitmap=bits, rest=rest)

        return lambda client: payload(client.info.size)

    def _extract(self, size: float) -> tuple[dict[str, float], Masks]:
        """Return the thresholds θ by group and the masks of a size."""
        theta = importance.thresholds(self.w, self.groups, size)
        return theta, importance.masks(self.w, importance.by_name(theta, self.groups))

    def check(self, client: Client, reply: Reply) -> None:
        kept = len(self._request(client).kept)
        if len(reply.delta) != kept:
            raise ValueError(
                f"delta has {len(reply.delta)} numbers, the mask of size {client.info.size:g} "
                f"keeps {kept}"
            )
        tree.check_like(reply.rest, tree.cut(self.w, self.complete), "rest")

    def _request(self, client: Client) -> Request:
        sent = self.sent[client.k]
        assert isinstance(sent, Request)
        return sent

    def _masks(self, client: Client) -> Masks:
        """Return the masks of the client's sub-model, of the version that it was sent."""
        like = tree.cut(self.w, self.entries)
        return importance.from_bitmap(self._request(client).bitmap, like)

    def rebased(self, client: Client, reply: Reply, discount: Discount) -> Reply:
        sent, masks = self._request(client), self._masks(client)
        old, change = (importance.spread(x, masks) for x in (sent.kept, reply.delta))
        trained = {name: old[name] - change[name] for name in masks}
        moved = discount(self.w, {**old, **sent.rest}, {**trained, **reply.rest})
        delta = importance.kept({name: self.w[name] - moved[name] for name in masks}, masks)
        return reply.model_copy(update={"delta": delta, "rest": tree.cut(moved, reply.rest)})

    def change(self, sent: protocol.Request, reply: Reply) -> Iterator[tuple[str, torch.Tensor]]:
        yield "delta", reply.delta

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        by_change = self.options.norm_count == "nonzero"
        norms = [name for name in self.complete if by_change and self.w[name].is_floating_point()]
        zeros = {
            name: torch.zeros_like(self.w[name], dtype=torch.float64)
            for name in (*self.entries, *norms)
        }
        total, count = zeros, {name: torch.zeros_like(x) for name, x in zeros.items()}
        for client, reply in replies:
            masks = self._masks(client)
            for name, delta in importance.spread(reply.delta, masks).items():
                total[name] += delta
                count[name] += delta != 0 if self.options.count == "nonzero" else masks[name]
            for name in norms:
                change = self.w[name].double() - reply.rest[name].double()
                total[name] += change
                count[name] += change != 0
        rest = tree.mean((reply.rest for _, reply in replies), [1] * len(replies))
        step, new = self.options.server_lr, dict(self.w)
        for name, mean in rest.items():
            moves = name in self.parameter_names and step != 1
            new[name] = self._moved(name, self.w[name].double() - mean, step) if moves else mean
        buffers = rest.keys() - self.parameter_names
        for name in total:
            delta = total[name] / count[name].clamp(min=1)
            new[name] = self._moved(name, delta, 1.0 if name in buffers else step)
        self.w = new
        return {}

    def _moved(self, name: str, delta: torch.Tensor, step: float) -> torch.Tensor:
        return (self.w[name].double() - step * delta).to(self.w[name].dtype)

    # The server scores every size; a client scores its own size.

    def networks(self) -> dict[str, Classifier]:
        networks = {}
        for size in sorted({client.info.size for client in self.clients}):
            masks = self._extract(size)[1]
            masked: StateDict = {name: self.w[name] * mask for name, mask in masks.items()}
            networks[size_name(size)] = self.build(self.global_spec, self.w | masked)
        return networks

    def scored_by(self, client: Client) -> str:
        return size_name(client.info.size)

    def measured_by(self, name: str) -> Sequence[Client]:
        return [client for client in self.clients if size_name(client.info.size) == name]


def size_name(size: float) -> str:
    """Return the name of a size's sub-model in the journal."""
    return f"size-{size:g}"
