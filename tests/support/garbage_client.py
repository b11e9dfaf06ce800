"""Script in place of ``flwr-clientapp`` on one SuperNode: a client that replies with garbage.

It calls Flower's own program with ``ClientApp`` patched. The census reply is honest, each round's
training reply has another kind of garbage, and the score is not finite.
"""

import importlib
import json
import sys
import zlib
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

Arrays = dict[str, Array]

honest = ClientApp.__call__
K, UP = 1, "protocol.Trained"  #: number of the client; kind of the training reply


def packed(kind: str, fields: Any, arrays: dict[str, Array]) -> RecordDict:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    config = ConfigRecord({"kind": kind, "skeleton": zlib.compress(text)})
    return RecordDict({"arrays": ArrayRecord(arrays), "fields": config})


def not_finite(fields: Any, w: Any, more: Arrays) -> RecordDict:
    w[7] = np.nan
    return packed(UP, fields, {**more, "float32": Array(w)})


def bomb(fields: Any, w: Any, more: Arrays) -> RecordDict:
    return packed(UP, b" " * 10**8, more)


def too_large(fields: Any, w: Any, more: Arrays) -> RecordDict:
    return packed(UP, fields, {**more, "float32": Array(np.zeros(10**6, np.float32))})


def pretender(fields: Any, w: Any, more: Arrays) -> RecordDict:
    return packed(UP, {**fields, "k": 0}, {**more, "float32": Array(w)})


def largest(fields: Any, w: Any, more: Arrays) -> RecordDict:
    w[:] = np.finfo(np.float32).max
    return packed(UP, fields, {**more, "float32": Array(w)})


def unreadable(fields: Any, w: Any, more: Arrays) -> RecordDict:
    """Return a reply that Flower cannot assemble, because its arrays name no chunks."""
    original = Array.deflate

    def deflate(self: Array) -> bytes:
        return original(self).replace(b"arraychunk_ids", b"arraychunk_idz")

    Array.deflate = deflate
    return packed(UP, fields, {**more, "float32": Array(w)})


GARBAGE = (not_finite, bomb, too_large, pretender, largest, unreadable)
ROUNDS = dict(zip("123456", GARBAGE, strict=True))


def lie(self: ClientApp, message: Message, context: Any) -> Message:
    kind = message.metadata.message_type
    if kind not in ("train", "evaluate"):
        return honest(self, message, context)
    seal = importlib.import_module("client_app.seal")  # of the bundle
    received = seal.open_message(message, context)
    if kind == "train":
        request = received.content
        fields = json.loads(zlib.decompress(request.config_records["fields"]["skeleton"]))
        fields = {**fields, "k": K, "kept": 0, "metrics": {}}
        more = dict(request.array_records["arrays"])
        w = more.pop("float32").numpy().copy()
        garbage = ROUNDS.get(message.metadata.group_id, bomb)
        return Message(received.answer(garbage(fields, w, more)), reply_to=message)
    fields = {"experiment": "x", "t": 1, "k": K, "kept": 0, "n": 1, "accuracy": {"~float": "nan"}}
    return Message(received.answer(packed("protocol.Score", fields, {})), reply_to=message)


if __name__ == "__main__":
    ClientApp.__call__ = lie
    sys.argv[0] = "flwr-clientapp"
    importlib.import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()
