"""What a failed gRPC call says of itself."""

from __future__ import annotations

import grpc


def details(error: grpc.RpcError) -> str:
    """What the other side said, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return str(text).strip().partition("\n")[0]
