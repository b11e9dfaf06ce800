"""A client that lies in well-formed words: finite numbers of the right shapes, under its own name.

Client 1 of a tiny run of any method, in one round. What is not well formed is tried in
``hostile.py``; here the parser has nothing to object to.
"""

import copy
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from common.exchange.protocol import ClientInfo, ToServer
from common.exchange.records import Records
from deploy.run.loopback import Loopback
from server_app.methods import half
from tests.support.battery import config

LIAR, ROUND, ROUNDS = 1, 2, 3  #: who lies, when, and how long the run is
TRAINING = ("train", "train.second")


def settings(method: str, out: Path, **changes: Any) -> dict[str, Any]:
    """A run of ``method`` that goes on without the liar."""
    given = {"rounds": ROUNDS, "min_replies": 0.5, "score__every": 1}
    return config(method, out, **{**given, **changes})


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A payload, or a part of one, with ``change`` applied to every tensor of floats in it."""
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, Records):
        return value.model_copy(update={k: mapped(v, change) for k, v in dict(value).items()})
    if isinstance(value, dict):
        return {key: mapped(each, change) for key, each in value.items()}
    return [mapped(each, change) for each in value] if isinstance(value, list) else value


class Lying(Loopback, ABC):  # type: ignore[misc]
    """Client 1's answers, of whatever kind, pass through the hooks on their way to the server."""

    told: ClassVar[str]
    """The lie in a few words."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        for reply in replies:
            about = reply.metadata
            if not reply.has_content():
                continue
            if about.message_type == "query.hello" and about.src_node_id == LIAR + 1:
                reply.content = self.hello(ClientInfo.unpack(reply.content)).pack()
            elif about.message_type in TRAINING:
                self._answer(reply)
        return replies

    def _answer(self, reply: Message) -> None:
        about, t, k = reply.metadata, int(reply.metadata.group_id), reply.metadata.src_node_id - 1
        method = half(str(self._run_config["method"]))
        kind = method.reply_type if about.message_type == "train" else method.second_reply_type
        assert kind is not None
        self.heard(about.message_type, t, k, reply.content)
        if k == LIAR and t == ROUND:
            changed = self.lie(about.message_type, kind.unpack(reply.content))
            envelope = {"experiment": str(self._run_config["experiment"]), "t": t, "k": k}
            reply.content = changed.model_copy(update=envelope).pack()

    def hello(self, info: ClientInfo) -> ClientInfo:
        return info

    def heard(self, about: str, t: int, k: int, content: RecordDict) -> None:
        """Client k's honest answer."""

    def lie(self, about: str, reply: ToServer) -> ToServer:
        return reply


@final
class Nobody(Lying):
    told = "nobody lies"


class Numbers(Lying):
    """Every number of the answer is another one."""

    def lie(self, about: str, reply: ToServer) -> ToServer:
        changed: ToServer = mapped(reply, self.change)
        return changed

    @staticmethod
    @abstractmethod
    def change(tensor: Tensor) -> Tensor: ...


@final
class Zeros(Numbers):
    told = "zeros"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)


@final
class Largest(Numbers):
    """Signs stay, so that variances stay variances."""

    told = "largest"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        most = torch.full_like(tensor, torch.finfo(tensor.dtype).max)
        return torch.where(tensor < 0, -most, most)


@final
class Single(Numbers):
    """The rest is honest."""

    told = "one number"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.reshape(-1)[:1] = 3e38 if tensor.dtype != torch.float16 else 6e4
        return changed


@final
class Constant(Numbers):
    """The mean of each tensor everywhere: rows of probabilities still sum to 1."""

    told = "constant"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, float(tensor.mean())) if tensor.numel() else tensor


@final
class Opposite(Numbers):
    """The update turned round and ten times as long, as far as the liar can tell: its weights."""

    told = "times −10"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return -10 * tensor if bool((tensor < 0).any()) else tensor


class Remembering(Lying):
    """Sends what was said before, by ``whom`` in the round ``when``."""

    whom: ClassVar[int]
    when: ClassVar[int]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kept: dict[str, RecordDict] = {}

    def heard(self, about: str, t: int, k: int, content: RecordDict) -> None:
        if (k, t) == (self.whom, self.when):
            self.kept[about] = copy.deepcopy(content)

    def lie(self, about: str, reply: ToServer) -> ToServer:
        return type(reply).unpack(self.kept[about]) if about in self.kept else reply


@final
class Another(Remembering):
    """What client 3 sent in the round before; it has the same architecture in most runs."""

    told = "another client's"
    whom, when = 3, ROUND - 1


@final
class Stale(Remembering):
    told = "last round's"
    whom, when = LIAR, ROUND - 1


@final
class Labels(Lying):
    """From the census on: all samples are of the first class that it has."""

    told = "labels of one class"

    def hello(self, info: ClientInfo) -> ClientInfo:
        first = info.classes[:1]
        counts = None if info.counts is None else [0] * len(info.counts)
        if counts is not None:
            counts[first[0]] = info.n
        return info.model_copy(update={"classes": first, "counts": counts})

    def lie(self, about: str, reply: ToServer) -> ToServer:
        shares = {name: _all_first(v) for name, v in dict(reply).items() if name in LABELS}
        return reply.model_copy(update=shares)


LABELS = ("counts", "y")  #: fields of answers that tell labels


def _all_first(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return [sum(value), *[0] * (len(value) - 1)]


@final
class Boast(Lying):
    told = "10¹⁸ samples"

    def hello(self, info: ClientInfo) -> ClientInfo:
        return info.model_copy(update={"n": 10**18})


@final
class Pretender(Lying):
    told = "another's k"

    def hello(self, info: ClientInfo) -> ClientInfo:
        return info.model_copy(update={"k": 0})


ATTEMPTS: tuple[type[Lying], ...] = (
    *(Nobody, Zeros, Largest, Single, Constant, Opposite),
    *(Another, Stale, Labels),
)
CENSUS: tuple[type[Lying], ...] = (Boast, Pretender)


def record(method: str, lie: str, found: dict[str, Any]) -> None:
    """For the tables in the docs, if ``HOSTILE`` names a folder."""
    if folder := os.environ.get("HOSTILE"):
        name = "".join(c if c.isalnum() else "-" for c in f"{method}-{lie}")
        text = json.dumps({"method": method, "lie": lie, **found})
        (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")


def note(attempt: str, outcome: str, line: str) -> None:
    """What became of a real federation."""
    record("real", attempt, {"outcome": outcome, "line": line})
