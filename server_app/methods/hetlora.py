"""HetLoRA, server half: average factors of several ranks, weighted by the norms of the updates."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import final

from torch import Tensor

from common import models
from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.hetlora import Options, Reply, Request, squared_norms
from common.models.adapters import A, B
from common.techniques.widths import Submodel, block, cut
from server_app.aggregation.staleness import Discount
from server_app.aggregation.width import Block, Width, average_blocks
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Models, Replies


@final
class State(Weights, kind="hetlora.State"):
    ranks: dict[int, int] = {}  #: r_k of clients that have pruned


@final
class HetLoRA(Averaged[Options, Reply]):
    """Server with A ← Σ_k p_k A_k and B ← Σ_k p_k B_k, p_k ∝ ‖B_k A_k‖_F."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.matching = self.blocks = Width(self.task, self.submodel, widest=True)
        self.ranks: dict[int, int] = {}

    def submodel(self, client: Client, t: int) -> Submodel:
        return Submodel(self.trains(client))

    def trains(self, client: Client) -> str:
        spec, own = client.architecture, models.rank(client.architecture)
        rank = min(own, self.ranks.get(client.k, own))
        return models.with_rank(models.frozen(spec), rank)

    def request(self, t: int) -> Callable[[Client], Request]:
        @cache
        def payload(spec: str) -> Request:
            return Request(w={}, spec=spec)

        return lambda client: payload(self.trains(client))

    def check(self, client: Client, reply: Reply) -> None:
        sent = self.trains(client)
        if reply.rank not in {models.rank(sent), self.options.kept(models.rank(sent))}:
            raise ValueError(f"rank = {reply.rank} of a client that was sent {sent}")
        spec = models.with_rank(models.frozen(sent), reply.rank)
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def rebased(self, client: Client, reply: Reply, discount: Discount) -> Reply:
        sent, now = self.sent[client.k], self.current(client, reply.t)
        assert isinstance(sent, Request)
        places = block(sent.w, reply.w)
        w = discount(cut(now, block(now, reply.w)), cut(sent.w, places), reply.w)
        return reply.model_copy(update={"w": w})

    def aggregate(self, replies: Replies[Reply], previous: Models) -> Models:
        options, spec = self.config.average, self.blocks.widest_spec
        before, result = previous[spec], dict(previous[spec])
        sent = [reply.w for _, reply in replies]
        p = options.shares(replies.sizes)
        for names, weights in self.groups(before, sent, p):
            start = tree.cut(before, names)
            parts = [tree.cut(w, names) for w in sent]
            if self.options.mixed == "rows":
                blocks = [
                    Block(part, block(start, part), weight)
                    for part, weight in zip(parts, weights, strict=True)
                ]
                result |= average_blocks(blocks, start, options, names)
            else:
                result |= tree.mean([padded(part, start) for part in parts], weights)
        return {spec: result}

    def groups(
        self, before: StateDict, sent: Sequence[StateDict], p: Sequence[float]
    ) -> list[tuple[list[str], Sequence[float]]]:
        """Return the entries that are averaged together, with the clients' weights."""
        factors = [name for name in before if name.endswith((A, B))]
        rest = [name for name in before if name not in factors]
        if self.options.weigh == "samples":
            return [(list(before), p)]
        norms = [squared_norms(w) for w in sent]
        layers = defaultdict[str, list[str]](list)
        for name in factors:
            layers[name.rpartition(".")[0] if self.options.norm == "layer" else ""].append(name)
        groups: list[tuple[list[str], Sequence[float]]] = [(rest, p)] if rest else []
        for layer, names in layers.items():
            squares = [n[layer] if layer else sum(n.values()) for n in norms]
            groups.append((names, [x**0.5 for x in squares] if any(squares) else p))
        return groups

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        self.ranks = {**self.ranks, **{client.k: reply.rank for client, reply in replies}}
        return metrics


def padded(part: StateDict, whole: StateDict) -> StateDict:
    """Return ``part`` with zeros where only ``whole`` has numbers."""
    result: dict[str, Tensor] = {}
    for name, value in part.items():
        result[name] = whole[name].new_zeros(whole[name].shape)
        result[name][tuple(map(slice, value.shape))] = value
    return result
