"""Clients and servers of secure sums without a run: an attempt in single steps, and their lies."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.participant import Participant
from client_app.secure import Masking
from common.exchange.protocol import (
    ClientInfo,
    MaskedReply,
    ModelReply,
    ModelRequest,
    UnmaskReply,
    UnmaskRequest,
)
from common.exchange.records import StateDict
from common.exchange.secure import sums
from common.exchange.secure.keys import Attempt, Peer
from common.parse import parse
from deploy.flower.certificates import Certificates
from server_app.method import Client
from server_app.secure.sums import SecureSum
from tests.support.tiny import flat

SIZE = 50  #: entries of an update


JOB = b"job"


class Fleet:
    """n clients with state, ledger and updates in ``folder``, and an honest server."""

    def __init__(
        self,
        folder: Path,
        n: int,
        keys: Certificates | None = None,
        *,
        roster: bool = False,
        size: int = SIZE,
        **changes: Any,
    ) -> None:
        given = {"method": "fedavg", "clients": n, "secure__mode": "on", **changes}
        self.settings = flat(folder / "out", **given)
        self.config = parse(self.settings)
        self.folder, self.n, self._keys, self._roster = folder, n, keys, roster
        generator = torch.Generator().manual_seed(1)
        self.before: StateDict = {"w": torch.randn(size, generator=generator)}
        self.updates = [0.3 * torch.randn(size, generator=generator) for _ in range(n)]
        self.weights = [1 + 3 * k for k in range(n)]
        self.sums = SecureSum(self.config)
        self.infos = {k: self.info(k) for k in range(n)}

    def masking(self, k: int) -> Masking:
        """Client k as a new process begins it."""
        node: dict[str, Any] = {"partition-id": k, "ledger": str(self.folder / "ledger")}
        if self._keys is not None:
            node["key"] = str(self._keys.key(k))
            node |= {"roster": str(self._keys.roster)} if self._roster else {}
        return Masking(Participant(self.config, node, "test"), "test")

    def info(self, k: int) -> ClientInfo:
        known: dict[str, Any] = {"n": self.weights[k], "n_test": 0, "model": "mlp", "classes": [0]}
        known |= {"counts": None, "task": "", "public": "", "version": "", "k": k}
        return ClientInfo.model_validate({**known, **self.masking(k).introduce()})

    def members(self, ks: Iterable[int]) -> list[Client]:
        return [Client(self.infos[k], k + 1) for k in ks]

    def begin(self, ks: Sequence[int]) -> dict[int, ModelRequest]:
        """Begin an attempt of the honest server with these clients."""
        request = ModelRequest(experiment="test", t=1, w=self.before)
        sent = self.sums.begin(self.members(ks), dict.fromkeys(ks, request), self.before)
        return {k: r for k, r in sent.items() if isinstance(r, ModelRequest)}

    def text(self, ks: Iterable[int], counter: int, shares: Mapping[int, bytes] = {}) -> bytes:
        """What a server may tell of an attempt; ``shares``: forged ones by client."""
        infos = {k: self.infos[k] for k in ks}
        peers = {
            k: Peer(shares.get(k, bytes.fromhex(i.secure)), bytes.fromhex(i.signature))
            for k, i in infos.items()
        }
        return Attempt(counter, max(self.weights[k] for k in infos), peers).to_bytes()

    def upload(
        self, k: int, text: bytes, before: StateDict | None = None, job: bytes = JOB
    ) -> MaskedReply:
        before = self.before if before is None else before
        reply = ModelReply(
            w={"w": before["w"] + self.updates[k]}, metrics={"loss": 1.0, "steps": 2}
        )
        return self.masking(k).masked(text, job, before, reply, self.weights[k])

    def unmask(self, k: int, request: UnmaskRequest) -> UnmaskReply:
        return self.masking(k).unmask(request)

    def complete(
        self, ks: Sequence[int], lost: Sequence[int] = (), silent: Sequence[int] = ()
    ) -> str:
        """Play an honest attempt, in which clients are ``lost`` before, ``silent`` after the
        upload; return why it failed, or an empty text."""
        requests = self.begin(ks)
        uploads = {k: self.upload(k, told(requests[k])) for k in ks if k not in lost}
        members = {client.k: client for client in self.members(ks)}
        for k, reply in uploads.items():
            self.sums.check(members[k], reply)
        self.sums.survive([(members[k], reply) for k, reply in uploads.items()])
        answers = [(k, self.unmask(k, r)) for k, r in self.sums.second().items() if k not in silent]
        for k, answer in answers:
            self.sums.check_second(members[k], answer)
        return self.sums.finish([(members[k], answer) for k, answer in answers])

    def mean(self, ks: Sequence[int]) -> torch.Tensor:
        """The weights after the mean update of these clients, without masks."""
        total = sum(self.weights[k] for k in ks)
        steps = (self.weights[k] / total * self.updates[k].double() for k in ks)
        return self.before["w"].double() + sum(
            steps, torch.zeros_like(self.before["w"], dtype=torch.float64)
        )

    def quantised(self, k: int, most: int) -> np.ndarray:
        """q_k, which no server may learn."""
        update = (self.before["w"] + self.updates[k]).double() - self.before["w"].double()
        whole, clipped = sums.quantised(
            update.numpy() * (self.weights[k] / most), self.config.secure.clip
        )
        return np.append(whole, np.uint32(round(clipped * sums.SHARES)))


def shares_for(uploads: Mapping[int, MaskedReply], j: int, ks: Sequence[int]) -> torch.Tensor:
    """The shares that the clients of ``uploads`` encrypted for client j, one of ``ks``."""
    return torch.stack([uploads[i].shares[list(ks).index(j)] for i in sorted(uploads)])


def words(reply: MaskedReply) -> np.ndarray:
    return reply.y.numpy().view(np.uint32)


def told(request: ModelRequest) -> bytes:
    assert request.secure is not None
    return request.secure.numpy().tobytes()
