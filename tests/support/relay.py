"""A malicious SuperLink: a proxy between the ServerApp and a real one, on the ServerAppIo API.

It forwards all calls, and can replace replies: it pulls the complete reply, builds another one with
Flower's functions, and serves that one and its parts.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.appio_pb2 import (
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from tests.support.waiting import until

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Proxy for the ServerAppIo API at ``upstream``.

    ``sent`` is called with metadata and id of each message to a node, before the node can pull all
    of it. ``reply`` returns the reply to deliver for one with content; None drops it.
    """

    def __init__(
        self,
        upstream: str,
        sent: Callable[[Any, str], None],
        reply: Callable[[Message], Message | None],
    ) -> None:
        self._channel = grpc.insecure_channel(upstream, options=OPTIONS)
        self._sent, self._reply = sent, reply
        self._own: dict[str, bytes] = {}  # parts of the replies that it built

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        name = call.method.rpartition("/")[2]
        onward = self._channel.unary_unary(call.method)

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            def ask(data: bytes, method: str = "") -> bytes:
                path = call.method.rpartition("/")[0]
                go = self._channel.unary_unary(f"{path}/{method}") if method else onward
                sent = context.invocation_metadata()
                metadata = [pair for pair in sent if pair[0] != "user-agent"]
                return bytes(go(data, metadata=metadata))

            try:
                return self._handle(name, request, ask)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
                raise

        return grpc.unary_unary_rpc_method_handler(handle)

    def _handle(self, name: str, request: bytes, ask: Callable[..., bytes]) -> bytes:
        if name == "PullObject":
            wanted = PullObjectRequest.FromString(request).object_id
            if wanted in self._own:
                content = self._own[wanted]
                found = {"object_found": True, "object_available": True}
                response = PullObjectResponse(object_content=content, **found)
                return bytes(response.SerializeToString())
        answer = ask(request)
        if name == "PushMessages":
            messages = PushAppMessagesRequest.FromString(request).messages_list
            names = PushAppMessagesResponse.FromString(answer).message_ids
            for message, message_id in zip(messages, names, strict=True):
                self._sent(message.metadata, message_id)
        if name == "PullMessages":
            return self._changed(answer, ask)
        return answer

    def _changed(self, answer: bytes, ask: Callable[..., bytes]) -> bytes:
        response = PullAppMessagesResponse.FromString(answer)
        delivered = PullAppMessagesResponse()
        for proto, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            if (passed := self._passed(proto, tree, ask)) is not None:
                delivered.messages_list.append(passed[0])
                delivered.message_object_trees.append(passed[1])
        return bytes(delivered.SerializeToString())

    def _passed(self, proto: Any, tree: Any, ask: Callable[..., bytes]) -> tuple[Any, Any] | None:
        """Return the delivered reply and the tree of its parts; None for a dropped reply."""
        if proto.HasField("error"):
            return proto, tree
        names = [node.object_id for node in iterate_object_tree(tree)]
        contents = {part: until(part, lambda part=part: self._pull(part, ask)) for part in names}
        honest: Message = inflate_object_from_contents(tree.object_id, contents)
        honest.metadata.__dict__["_message_id"] = tree.object_id
        changed = self._reply(honest)
        if changed is honest:
            return proto, tree
        if changed is None:
            return None
        changed.metadata.__dict__["_message_id"] = changed.object_id
        self._own |= {key: part.deflate() for key, part in get_all_nested_objects(changed).items()}
        return message_to_proto(remove_content_from_message(changed)), get_object_tree(changed)

    def _pull(self, part: str, ask: Callable[..., bytes]) -> bytes:
        request = PullObjectRequest(object_id=part, node=Node(node_id=SUPERLINK_NODE_ID))
        response = PullObjectResponse.FromString(ask(request.SerializeToString(), "PullObject"))
        return bytes(response.object_content) if response.object_available else b""


def parts(message: Message) -> list[str]:
    """Return the ids of the objects into which Flower splits a message."""
    return list(get_all_nested_objects(message))


@contextmanager
def serving(relay: Relay) -> Iterator[str]:
    """Serve the relay during the ``with`` block; yield its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[relay], options=OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
