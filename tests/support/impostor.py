"""A registered client that replies for other clients through Flower's Fleet API."""

from typing import Any

import grpc
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.grpc import create_channel
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor

from common.exchange.seal.files import ssh_key
from deploy.flower.certificates import Certificates


class Impostor:
    """Client k of the federation at ``fleet``, with its own key; ``node``: its node id."""

    def __init__(self, fleet: str, keys: Certificates, k: int) -> None:
        key = ssh_key(keys.key(k))
        self.node = 0
        self._channel: grpc.Channel = create_channel(
            server_address=fleet,
            insecure=False,
            root_certificates=keys.ca.read_bytes(),
            interceptors=[
                RuntimeVersionClientInterceptor(component_name="SuperNode"),
                NodeAuthClientInterceptor(key, key.public_key()),
            ],
        )
        self._stub = FleetStub(self._channel)

    def answer(self, about: Any, name: str, content: RecordDict) -> bool:
        """Reply to another node's message; return whether the SuperLink accepts the reply.

        ``about``: the message's metadata as Flower sends them, ``name``: its id.
        """
        named = {"ttl": about.ttl, "group_id": "2"}
        request = Message(RecordDict(), about.dst_node_id, about.message_type, **named)
        known = {"_run_id": about.run_id, "_message_id": name, "_src_node_id": about.src_node_id}
        request.metadata.__dict__.update({**known, "_created_at": about.created_at})
        forged = Message(content, reply_to=request)
        forged.metadata.__dict__["_message_id"] = forged.object_id
        node = Node(node_id=self.node)
        head, tree = remove_content_from_message(forged), get_object_tree(forged)
        sent = {"messages_list": [message_to_proto(head)], "message_object_trees": [tree]}
        taken = self._stub.PushMessages(PushMessagesRequest(node=node, **sent))
        for part, item in get_all_nested_objects(forged).items():
            if part in taken.objects_to_push:
                about_part = {"node": node, "run_id": about.run_id, "object_id": part}
                push = PushObjectRequest(object_content=item.deflate(), **about_part)
                self._stub.PushObject(push)
        return list(taken.results) == [forged.object_id]

    def pull(self, run: int, part: str) -> bytes:
        """Return an object that another client sent."""
        request = PullObjectRequest(node=Node(node_id=self.node), run_id=run, object_id=part)
        return bytes(self._stub.PullObject(request).object_content)

    def close(self) -> None:
        self._channel.close()
