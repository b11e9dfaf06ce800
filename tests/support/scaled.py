"""A client that sends its change of the model multiplied by a factor."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from common.exchange.protocol import ModelReply, ModelRequest
from deploy.run.loopback import Loopback

LIAR = 2
SIX: dict[str, Any] = {"method": "fedavg", "clients": 6, "fleet": "lenet5@0.5", "train__lr": 0.1}


class Scaled(Loopback):  # type: ignore[misc]
    """Loopback on which liars multiply their change of the parameters by ``factor``."""

    liars: tuple[int, ...] = (LIAR,)
    factor = -30.0
    rounds: tuple[int, ...] = ()  #: the rounds with false replies; empty: all

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.requests: dict[int, Any] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            if message.metadata.message_type == "train":
                self.requests[message.metadata.dst_node_id] = message.content
        names: Iterable[str] = super().push_messages(sent)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        for reply in replies:
            about = reply.metadata
            lies = about.src_node_id - 1 in self.liars and about.message_type == "train"
            if lies and (not self.rounds or int(about.group_id) in self.rounds):
                w = ModelRequest.unpack(self.requests[about.src_node_id]).w
                model = ModelReply.unpack(reply.content)
                trained = [name for name in w if name.endswith((".weight", ".bias"))]
                steps = {name: model.w[name] - w[name] for name in trained}
                changed = {name: w[name] + self.factor * step for name, step in steps.items()}
                reply.content = model.model_copy(update={"w": model.w | changed}).pack()
        return replies
