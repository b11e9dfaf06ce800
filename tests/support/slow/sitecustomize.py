"""A slow SuperNode: sending each large part of a message takes ``SLOW`` seconds longer."""

import os
import sys
import time
from typing import Any

LARGE = 50_000  #: bytes

if os.environ.get("SLOW") and "supernode" in " ".join(sys.orig_argv):
    from flwr.proto import fleet_pb2_grpc

    _stub = fleet_pb2_grpc.FleetStub.__init__

    def slowed(self: Any, channel: Any) -> None:
        _stub(self, channel)
        push = self.PushObject

        def late(request: Any, *args: Any, **kwargs: Any) -> Any:
            if len(request.object_content) > LARGE:
                time.sleep(float(os.environ["SLOW"]))
            return push(request, *args, **kwargs)

        self.PushObject = late

    fleet_pb2_grpc.FleetStub.__init__ = slowed  # type: ignore[method-assign]
