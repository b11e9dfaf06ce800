"""An attempt at a secure sum on the server: requests, masked updates, and their mean.

No key is stored in the run's folder. The counter of an attempt is the time in nanoseconds, so that
it also rises when a run resumes, undoes a round, or continues from a copied folder.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import final

import numpy as np
import torch

from common.exchange.protocol import (
    MaskedReply,
    ModelReply,
    Reply,
    Request,
    UnmaskReply,
    UnmaskRequest,
)
from common.exchange.records import StateDict
from common.exchange.secure import shamir, sums
from common.exchange.secure.keys import KEY, SHARE, Attempt, Peer
from common.settings.config import Config
from common.techniques.privacy import averaged, moved
from server_app.method import Client


@final
class SecureSum:
    """The newest attempt at the sum of a round."""

    def __init__(self, config: Config) -> None:
        self.options, self._average = config.secure, config.average
        self._min_replies = 0.0 if config.privacy.on else config.run.min_replies
        self._counter = 0
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the attempts at the round before."""
        self._answered: Collection[int] = ()  # clients of the newest attempt that answered last
        self._selected = 0
        self._reset()

    def _reset(self) -> None:
        self._uploads: dict[int, MaskedReply] = {}
        self.mean: StateDict | None = None  #: the weights after the mean update; None: it failed
        self.clipped = 0.0  #: mean share of clipped entries

    @property
    def needed(self) -> int:
        """Number of updates that a sum needs, of the round's selected clients."""
        n = self._selected
        at_least = math.ceil(self._min_replies * n - 1e-9)
        return max(self.options.least(n), self.options.fewest, at_least)

    # The first exchange.

    def among(self, asked: Sequence[Client]) -> list[Client]:
        """Return the clients of the next attempt: those that answered, if they are enough."""
        again = [client for client in asked if client.k in self._answered]
        self._selected = max(self._selected, len(asked))
        return again if len(again) >= self.needed else list(asked)

    def begin(
        self, clients: Sequence[Client], sent: Mapping[int, Request], before: StateDict
    ) -> dict[int, Request]:
        """Begin an attempt, and return the requests with what its clients must know, by client.

        ``before``: the entries that clients upload, with their weights before the round.
        """
        self._reset()
        self._counter = max(time.time_ns(), self._counter + 1)
        self._before, self._names = before, sorted(averaged(before, frozenset(), buffers=True))
        self._entries = sum(before[name].numel() for name in self._names)
        weights = self._average.shares([client.weight for client in clients])
        self._weights = {c.k: weight for c, weight in zip(clients, weights, strict=True)}
        self._most = max(weights, default=1)
        infos = {client.k: client.info for client in clients}
        told = Attempt(
            self._counter,
            self._most,
            {k: Peer(*map(bytes.fromhex, (i.secure, i.signature))) for k, i in infos.items()},
        ).to_bytes()
        secure = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        requests: dict[int, tuple[Request, Request]] = {}  # keeps equal payloads one object
        for request in sent.values():
            masked = request.model_copy(update={"secure": secure})
            requests.setdefault(id(request), (request, masked))
        return {k: requests[id(request)][1] for k, request in sent.items()}

    def check(self, client: Client, reply: MaskedReply) -> None:
        """Raise ``ValueError`` for a masked update of another size."""
        if client.k not in self._weights:
            raise ValueError("the client is not in this attempt")
        for name, value, shape in (
            ("y", reply.y, (self._entries + 1,)),
            ("shares", reply.shares, (len(self._weights), SHARE)),
        ):
            if value.shape != shape:
                raise ValueError(f"{name} has shape {[*value.shape]}, expected {[*shape]}")

    def survive(self, good: Sequence[tuple[Client, Reply]]) -> bool:
        """Set the survivors, with their masked updates; return whether they are enough."""
        for client, reply in good:
            assert isinstance(reply, MaskedReply), "as the messenger has opened it"
            self._uploads[client.k] = reply
        self._answered = self._uploads.keys()
        return len(self._uploads) >= self.needed

    # The second exchange.

    @property
    def _lost(self) -> list[int]:
        return sorted(self._weights.keys() - self._uploads.keys())

    def second(self) -> dict[int, UnmaskRequest]:
        """Return the requests of the second exchange by survivor."""
        places = {k: i for i, k in enumerate(sorted(self._weights))}
        survivors = sorted(self._uploads)
        requests = {}
        for j in survivors:
            shares = torch.stack([self._uploads[i].shares[places[j]] for i in survivors])
            requests[j] = UnmaskRequest(survivors=survivors, shares=shares)
        return requests

    def check_second(self, client: Client, reply: UnmaskReply) -> None:
        """Raise ``ValueError`` for another number of shares or keys."""
        for name, value, n in (
            ("shares", reply.shares, len(self._uploads)),
            ("pair keys", reply.pair_keys, len(self._lost)),
        ):
            if len(value) != n:
                raise ValueError(f"it has {len(value)} {name}, expected {n}")

    def finish(self, answers: Sequence[tuple[Client, UnmaskReply]]) -> str:
        """Set ``mean`` and ``clipped`` from the answers; return why that is impossible, or "".

        Without masks left, no entry of the sum exceeds the sum of the largest values.
        """
        survivors, lost = sorted(self._uploads), self._lost
        by_k = {client.k: reply for client, reply in answers}
        self._answered = by_k.keys()
        if len(by_k) < (least := self.options.least(len(self._weights))):
            return f"{len(by_k)} of {len(survivors)} clients helped to remove masks, of {least}"
        if lost and len(by_k) < len(survivors):
            return "a client has the keys of a lost client's masks, and is lost too"
        self_keys = {
            i: shamir.combine({j + 1: _row(reply.shares, at) for j, reply in by_k.items()})
            for at, i in enumerate(survivors)
        }
        lost_keys = {
            i: {j: _row(by_k[i].pair_keys, at) for at, j in enumerate(lost)}
            for i in survivors
            if lost
        }
        uploads = ((i, self._uploads[i].y.numpy().view(np.uint32)) for i in survivors)
        total = sums.unmasked(uploads, self_keys, lost_keys, self._entries + 1)
        whole, last = total[:-1], int(total[-1])
        beyond = np.abs(whole.view(np.int32).astype(np.int64)) > len(survivors) * sums.LARGEST
        if beyond.any() or last > len(survivors) * sums.SHARES:
            return "masks are left in the sum: a client sent a wrong share or key"
        weight = sum(self._weights[i] for i in survivors) / self._most
        update = torch.from_numpy(sums.dequantised(whole, self.options.clip) / weight)
        self.mean = moved(self._before, self._names, update)
        self.clipped = last / sums.SHARES / len(survivors)
        return ""

    def replies(self, good: Sequence[tuple[Client, Reply]]) -> list[tuple[Client, Reply]]:
        """Return the mean as the reply of every survivor, so that their mean is the mean."""
        assert self.mean is not None, "the sum is complete"
        return [(client, ModelReply(metrics=reply.metrics, w=self.mean)) for client, reply in good]


def _row(values: torch.Tensor, at: int) -> bytes:
    row = values[at].numpy().tobytes()
    assert len(row) == KEY, "as the record class says"
    return row


def notes(config: Config, clients: Sequence[Client]) -> list[str]:
    """Return lines about a run with secure sums, for the log and the journal's census."""
    if not config.secure.on:
        return []
    lines = ['secure.mode = "on": sanity is off, because the server sees no single update']
    if without := sum(not client.info.roster for client in clients):
        lines.append(
            f"{without} of {len(clients)} clients have no roster.pub: they trust the server to "
            "relay the keys of their peers"
        )
    return lines
