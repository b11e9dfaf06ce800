"""Flower's own form of a message as bytes, for the Grid of ``deploy/run/loopback.py``."""

from flwr.app import Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.common.typing import Run
from flwr.proto.message_pb2 import Message as ProtoMessage


def to_bytes(message: Message) -> bytes:
    """The message as it would go over a network."""
    return bytes(message_to_proto(message).SerializeToString())


def from_bytes(data: bytes) -> Message:
    """Inverse of ``to_bytes``."""
    return message_from_proto(ProtoMessage.FromString(data))


def packed(content: RecordDict) -> bytes:
    """What a message holds, to be put behind the ``head`` of every message that holds it."""
    return bytes(ProtoMessage(content=recorddict_to_proto(content)).SerializeToString())


def head(message: Message, run_id: int, name: str) -> bytes:
    """All that a SuperLink hands on of a message which it calls ``name``, but for its content."""
    proto = ProtoMessage(metadata=metadata_to_proto(message.metadata))
    proto.metadata.run_id, proto.metadata.message_id = run_id, name
    return bytes(proto.SerializeToString())


def empty(head: bytes) -> Message:
    """The message of a ``head``, without what it held; it can be replied to."""
    return from_bytes(head + packed(RecordDict()))


def nameless_run(run_id: int) -> Run:
    """A run of which a Grid knows the id alone."""
    return Run.create_empty(run_id)
