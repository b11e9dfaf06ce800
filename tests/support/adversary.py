"""Malicious clients with well-formed replies: finite numbers of the right shapes, its own number k.

Client 1 of a tiny run sends a false reply in one round. ``hostile.py`` has malformed replies.
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

LIAR, ROUND, ROUNDS = (
    1,
    2,
    3,
)  #: the malicious client, the round of its false reply, rounds of the run
TRAINING = ("train", "train.second")
LABELS = ("counts", "y")  #: fields of replies that reveal labels


def settings(method: str, out: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run of ``method`` that continues without a refused client."""
    usual = {"rounds": ROUNDS, "min_replies": 0.5, "score__every": 1}
    return config(method, out, **{**usual, **changes})


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a payload or a part of one, with ``change`` applied to floating-point tensors."""
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, Records):
        return value.model_copy(update={k: mapped(v, change) for k, v in dict(value).items()})
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return [mapped(item, change) for item in value] if isinstance(value, list) else value


class Lying(Loopback, ABC):  # type: ignore[misc]
    """Loopback that passes client 1's census and training replies through the hooks below."""

    label: ClassVar[str]
    """Short name of the attack."""

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
        """Return the census reply to send."""
        return info

    def heard(self, about: str, t: int, k: int, content: RecordDict) -> None:
        """Receive client k's honest reply."""

    def lie(self, about: str, reply: ToServer) -> ToServer:
        """Return the reply to send to a message of type ``about``."""
        return reply


@final
class Nobody(Lying):
    label = "nobody lies"


class Numbers(Lying):
    """Base class: replaces the numbers of the reply."""

    def lie(self, about: str, reply: ToServer) -> ToServer:
        changed: ToServer = mapped(reply, self.change)
        return changed

    @staticmethod
    @abstractmethod
    def change(tensor: Tensor) -> Tensor: ...


@final
class Zeros(Numbers):
    label = "zeros"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)


@final
class Largest(Numbers):
    """The largest numbers, with their signs: variances stay positive."""

    label = "largest"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        most = torch.full_like(tensor, torch.finfo(tensor.dtype).max)
        return torch.where(tensor < 0, -most, most)


@final
class Single(Numbers):
    """One enormous number in each tensor."""

    label = "one number"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.reshape(-1)[:1] = 3e38 if tensor.dtype != torch.float16 else 6e4
        return changed


@final
class Constant(Numbers):
    """The mean of each tensor in all its entries: rows of probabilities still sum to 1."""

    label = "constant"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, float(tensor.mean())) if tensor.numel() else tensor


@final
class Opposite(Numbers):
    """Tensors with negative numbers, such as weights, multiplied by −10."""

    label = "times −10"

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        return -10 * tensor if bool((tensor < 0).any()) else tensor


class Remembering(Lying):
    """Base class: sends the reply of client ``whom`` in the earlier round ``when``."""

    whom: ClassVar[int]
    when: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[str, RecordDict] = {}

    def heard(self, about: str, t: int, k: int, content: RecordDict) -> None:
        if (k, t) == (self.whom, self.when):
            self.kept[about] = copy.deepcopy(content)

    def lie(self, about: str, reply: ToServer) -> ToServer:
        return type(reply).unpack(self.kept[about]) if about in self.kept else reply


@final
class Another(Remembering):
    """The previous reply of client 3, which has the same architecture in most runs."""

    label = "another client's"
    whom, when = 3, ROUND - 1


@final
class Stale(Remembering):
    label = "last round's"
    whom, when = LIAR, ROUND - 1


@final
class Labels(Lying):
    """From the census on, claims that all samples are of its first class."""

    label = "labels of one class"

    def hello(self, info: ClientInfo) -> ClientInfo:
        first = info.classes[:1]
        counts = None if info.counts is None else [0] * len(info.counts)
        if counts is not None:
            counts[first[0]] = info.n
        return info.model_copy(update={"classes": first, "counts": counts})

    def lie(self, about: str, reply: ToServer) -> ToServer:
        shares = {name: _all_first(v) for name, v in dict(reply).items() if name in LABELS}
        return reply.model_copy(update=shares)


def _all_first(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return [sum(value), *[0] * (len(value) - 1)]


@final
class Boast(Lying):
    label = "10¹⁸ samples"

    def hello(self, info: ClientInfo) -> ClientInfo:
        return info.model_copy(update={"n": 10**18})


@final
class Pretender(Lying):
    label = "another's k"

    def hello(self, info: ClientInfo) -> ClientInfo:
        return info.model_copy(update={"k": 0})


ATTEMPTS: tuple[type[Lying], ...] = (Nobody, Zeros, Largest, Single, Constant, Opposite)
ATTEMPTS += (Another, Stale, Labels)
CENSUS: tuple[type[Lying], ...] = (Boast, Pretender)


def record(method: str, lie: str, result: dict[str, Any]) -> None:
    """Write a result for the tables in the docs, if ``HOSTILE`` names a folder."""
    if folder := os.environ.get("HOSTILE"):
        name = "".join(c if c.isalnum() else "-" for c in f"{method}-{lie}")
        text = json.dumps({"method": method, "lie": lie, **result})
        (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")


def note(attempt: str, outcome: str, line: str) -> None:
    """Write the outcome of an attack on a real federation."""
    record("real", attempt, {"outcome": outcome, "line": line})
