"""Flower's own form of a message as bytes, for the Grid of ``deploy/run/loopback.py``."""

from __future__ import annotations

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.common.typing import Run
from flwr.proto.message_pb2 import Message as ProtoMessage


def to_bytes(message: Message) -> bytes:
    """The message as it would go over a network."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def from_bytes(data: bytes) -> Message:
    """Inverse of ``to_bytes``."""
    return message_from_proto(ProtoMessage.FromString(data))


def sent(message: Message, run_id: int, name: str) -> tuple[bytes, Message]:
    """What a SuperLink hands on of a message that it calls ``name``; and the same without content.

    The second can be replied to, and holds none of the first one's memory.
    """
    proto = message_to_proto(message)
    proto.metadata.run_id, proto.metadata.message_id = run_id, name
    data = proto.SerializeToString()
    proto.ClearField("content")
    proto.content.SetInParent()
    return data, message_from_proto(proto)


def nameless_run(run_id: int) -> Run:
    """A run of which a Grid knows the id alone."""
    return Run.create_empty(run_id)
