"""Keys in tests: a loopback with keys, an altered sealed message, a SuperLink's list of keys."""

import grpc
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.proto.control_pb2 import ListNodesResponse, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo

from common.settings.config import Value
from deploy.flower import control
from deploy.flower.certificates import Certificates
from deploy.run.loopback import Loopback


class Keyed(Loopback):  # type: ignore[misc]
    """Loopback whose clients have ``keys``; ``FEDMOSAIC_TRUST`` names the ServerApp's."""

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        super().__init__(int(config["clients"]), config, workers=0)
        for node, settings in self._nodes.items():
            k = int(settings["partition-id"])
            own = {"key": str(keys.key(k)), "ca": str(keys.ca), "state-dir": config["state-dir"]}
            self._nodes[node] = {**settings, **own}


def altered(content: RecordDict) -> RecordDict:
    """Return a sealed message with one bit of its body changed."""
    pieces = dict(content.array_records["sealed"])
    data = bytearray(pieces["2"].data)
    data[len(data) // 2] ^= 1
    pieces["2"] = Array("uint8", (len(data),), "sealed", bytes(data))
    return RecordDict({**content, "sealed": ArrayRecord(pieces)})


class Registry:
    """Stub of the Control API that knows the ``status`` of keys; node i has the i-th key."""

    def __init__(self, status: dict[bytes, str]) -> None:
        self.status = status

    def RegisterNode(self, request: RegisterNodeRequest, timeout: float) -> None:  # noqa: N802
        if request.public_key in self.status:
            raise grpc.RpcError(control.IN_USE)
        self.status[request.public_key] = "registered"

    def UnregisterNode(self, request: UnregisterNodeRequest, timeout: float) -> None:  # noqa: N802
        self.status[list(self.status)[request.node_id]] = control.UNREGISTERED

    def ListNodes(self, _: object, timeout: float) -> ListNodesResponse:  # noqa: N802
        keys = enumerate(self.status.items())
        nodes = [NodeInfo(node_id=i, public_key=key, status=state) for i, (key, state) in keys]
        return ListNodesResponse(nodes_info=nodes)
