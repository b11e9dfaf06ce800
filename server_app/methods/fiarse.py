"""FIARSE, server half: the largest entries go out, and come back as steps."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import final

import torch

from common import importance, protocol, tree
from common.importance import Masks
from common.methods.fiarse import Down, Options, Up
from common.models.batchnorm import statistics
from common.models.classifier import Classifier
from common.records import StateDict
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Ups


@final
class FIARSE(GlobalModel[Options, Up]):
    """w ← w − η_g Σ_k Δ_k / |{k has it}|."""

    answers = Up

    def prepare(self) -> None:
        super().prepare()
        self.entries = importance.entries(self.net)
        self.groups = importance.groups(self.entries, self.options.scope)
        stays = set() if self.options.running else set(statistics(self.net))
        self.whole = [name for name in self.w if name not in {*self.entries, *stays}]
        self.masks: dict[float, Masks] = {}  #: of the round at hand, by size

    def begin(self, clients: Sequence[Client]) -> None:
        """Raises ``ValueError`` for a size that is not configured."""
        super().begin(clients)
        for client in clients:
            size, allowed = client.peer.size, self.options.allowed(self.config, client.k)
            if size not in allowed:
                told = ", ".join(f"{each:g}" for each in allowed)
                raise ValueError(
                    f"census: client {client.k} claims the size {size:g}; configured are {told}"
                )

    def down(self, t: int) -> Callable[[Client], Down]:
        """Equal payloads are one object, which is packed once."""
        self.masks = {}

        @cache
        def payload(size: float) -> Down:
            theta, masks = self._extract(size)
            self.masks[size] = masks
            kept, bits = importance.kept(self.w, masks), importance.bitmap(masks)
            return Down(theta=theta, kept=kept, bitmap=bits, rest=tree.cut(self.w, self.whole))

        return lambda client: payload(client.peer.size)

    def _extract(self, size: float) -> tuple[dict[str, float], Masks]:
        theta = importance.thresholds(self.w, self.groups, size)
        return theta, importance.masks(self.w, importance.by_name(theta, self.groups))

    def check(self, client: Client, up: Up) -> None:
        size = client.peer.size
        expected = sum(int(mask.sum()) for mask in self.masks[size].values())
        if len(up.delta) != expected:
            raise ValueError(
                f"delta has {len(up.delta)} numbers, the mask of size {size:g} keeps {expected}"
            )
        tree.check_like(up.rest, tree.cut(self.w, self.whole), "rest")

    def change(self, sent: protocol.Down, up: Up) -> Iterator[tuple[str, torch.Tensor]]:
        yield "delta", up.delta

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        zeros = {name: torch.zeros_like(self.w[name], dtype=torch.float64) for name in self.entries}
        total, having = zeros, {name: torch.zeros_like(x) for name, x in zeros.items()}
        for client, up in ups:
            masks = self.masks[client.peer.size]
            for name, delta in importance.spread(up.delta, masks).items():
                total[name] += delta
                having[name] += delta != 0 if self.options.count == "nonzero" else masks[name]
        rest = tree.mean((up.rest for _, up in ups), [1] * len(ups))
        step, new = self.options.server_lr, dict(self.w)
        for name in self.entries:
            new[name] = self._moved(name, total[name] / having[name].clamp(min=1), step)
        for name, mean in rest.items():
            moves = name in self.parameter_names and step != 1
            new[name] = self._moved(name, self.w[name].double() - mean, step) if moves else mean
        self.w = new
        return {}

    def _moved(self, name: str, delta: torch.Tensor, step: float) -> torch.Tensor:
        return (self.w[name].double() - step * delta).to(self.w[name].dtype)

    # Every size is scored, a client's own by the client.

    def networks(self) -> dict[str, Classifier]:
        found = {}
        for size in sorted({client.peer.size for client in self.clients}):
            masks = self._extract(size)[1]
            inside: StateDict = {name: self.w[name] * mask for name, mask in masks.items()}
            found[named(size)] = self.build(self.global_spec, self.w | inside)
        return found

    def scored_by(self, client: Client) -> str:
        return named(client.peer.size)

    def measured_by(self, name: str) -> Sequence[Client]:
        return [client for client in self.clients if named(client.peer.size) == name]


def named(size: float) -> str:
    """What a size's submodel is called in the journal."""
    return f"size-{size:g}"
