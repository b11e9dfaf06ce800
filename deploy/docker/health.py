"""Exit status 0 if the gRPC health service at the given ``host:port`` says that it serves.

The health check of every container. It is a script beside the image and not part of the program,
so that a check costs no more than the import of gRPC.
"""

import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

SECONDS = 5.0


def main(address: str) -> int:
    """0 if it serves, 1 if it answers otherwise or not at all."""
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = HealthStub(channel)
        try:
            answer = stub.Check(HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            details = getattr(error, "details", None)
            print(f"{address}: {details() if details else error}", file=sys.stderr)
            return 1
    print(HealthCheckResponse.ServingStatus.Name(answer.status))
    return int(answer.status != HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
