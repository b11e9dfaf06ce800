"""The server's pool of feature batches (FedIN, Algorithm 1, lines 4 and 5)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


@final
class FeaturePool:
    """The latest (s_in, s_out) of each client, of at most ``limit`` clients."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: dict[int, Batch] = {}  #: by client
        self.rounds: dict[int, int] = {}  #: the round that each comes from

    def put(self, t: int, k: int, s_in: Tensor, s_out: Tensor) -> None:
        """Take client k's batch of round t; the oldest makes room (ties: larger k)."""
        self.held[k], self.rounds[k] = (s_in, s_out), t
        while len(self.held) > self.limit:
            gone = min(self.held, key=lambda k: (self.rounds[k], -k))
            del self.held[gone], self.rounds[gone]

    def draw(
        self, size: int, generator: torch.Generator, *, without: int | None = None
    ) -> Batch | None:
        """``size`` pairs, each as likely as any other and none twice; all if there are fewer.

        ``without``: the client whose pairs are left out. None if there is no pair.
        """
        batches = [self.held[k] for k in sorted(self.held) if k != without]
        if not batches:
            return None
        places = [(batch, row) for batch in batches for row in range(len(batch[0]))]
        chosen = torch.randperm(len(places), generator=generator)[:size].tolist()
        pairs = [(places[i][0], places[i][1]) for i in chosen]
        s_in = torch.stack([batch[0][row] for batch, row in pairs])
        s_out = torch.stack([batch[1][row] for batch, row in pairs])
        return s_in, s_out
