"""Health check of every container: exit with 0 if the gRPC service at ``host:port`` is healthy.

It is a script of the image and not part of the program, so that a check imports only gRPC.
"""

import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

SECONDS = 5.0


def main(address: str) -> int:
    """Return 0 if the service reports that it is healthy, otherwise 1."""
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
