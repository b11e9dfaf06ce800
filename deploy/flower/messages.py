"""Serialize messages in Flower's format, for the Grid of ``deploy/run/loopback.py``."""

from flwr.app import Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.common.typing import Run
from flwr.proto.message_pb2 import Message as ProtoMessage


def to_bytes(message: Message) -> bytes:
    """Return the serialized message, as it is sent over a network."""
    return bytes(message_to_proto(message).SerializeToString())


def from_bytes(data: bytes) -> Message:
    """Return the message that ``to_bytes`` serialized."""
    return message_from_proto(ProtoMessage.FromString(data))


def packed(content: RecordDict) -> bytes:
    """Return the serialized ``content`` of a message, to append to the ``head`` of messages."""
    return bytes(ProtoMessage(content=recorddict_to_proto(content)).SerializeToString())


def head(message: Message, run_id: int, name: str) -> bytes:
    """Return the serialized metadata of a message with the id ``name``, without its content."""
    proto = ProtoMessage(metadata=metadata_to_proto(message.metadata))
    proto.metadata.run_id, proto.metadata.message_id = run_id, name
    return bytes(proto.SerializeToString())


def empty(head: bytes) -> Message:
    """Return the message of ``head`` without content; a reply to it is possible."""
    return from_bytes(head + packed(RecordDict()))


def nameless_run(run_id: int) -> Run:
    """Return a run that has only an id, for a Grid."""
    return Run.create_empty(run_id)
