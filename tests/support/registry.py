"""The Control API's answers about keys, without a SuperLink."""

import grpc
from flwr.proto.control_pb2 import ListNodesResponse, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo

from deploy.flower import control


class Registry:
    """Stub of the Control API that knows the ``status`` of keys; node i has the i-th key."""

    def __init__(self, status: dict[bytes, str]) -> None:
        self.status = status

    def RegisterNode(self, request: RegisterNodeRequest, timeout: float) -> None:  # noqa: N802
        if request.public_key in self.status:
            raise grpc.RpcError(control.TAKEN)
        self.status[request.public_key] = "registered"

    def UnregisterNode(self, request: UnregisterNodeRequest, timeout: float) -> None:  # noqa: N802
        self.status[list(self.status)[request.node_id]] = control.UNREGISTERED

    def ListNodes(self, _: object, timeout: float) -> ListNodesResponse:  # noqa: N802
        keys = enumerate(self.status.items())
        nodes = [NodeInfo(node_id=i, public_key=key, status=state) for i, (key, state) in keys]
        return ListNodesResponse(nodes_info=nodes)
