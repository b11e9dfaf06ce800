"""Check TLS and the client's key at a SuperLink before a SuperNode connects.

If only one side uses TLS, gRPC retries forever without a reason. A rejected SuperNode ends with a
traceback. A SuperNode that was killed is rejected after its restart until the server has missed its
heartbeats. ``fedmosaic node`` therefore checks both first, with the client's key.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from common.exchange.seal.files import ssh_key
from common.flower.rpc import details
from deploy.flower.certificates import Certificates

NOTICED = 60.0  #: seconds until the server detects a lost SuperNode: two of Flower's heartbeats
PATIENCE = NOTICED + 15.0
CALL = 10.0  #: timeout of one call in seconds
UNKNOWN = "No SuperNode found"  #: Flower's error for a key that is not registered
CONNECTED = "could not be activated"  #: Flower's error for a key whose SuperNode is connected
CLOCK = "Invalid timestamp"  #: Flower's error for a request of another time
OTHER_API = "Method not found"  #: gRPC's error from another service
TLS_PATIENCE = 5.0  #: timeout of the connection and the handshake in seconds
NOT_TLS = "WRONG_VERSION_NUMBER"  #: OpenSSL's error for a response without TLS


def check_tls(address: str, tls: bool) -> None:
    """Raise ``RuntimeError`` if only one of the server at ``address`` and this side uses TLS.

    The message names the correct option. Return if there is no response, because the server may
    start later.
    """
    server_tls = _uses_tls(address)
    if server_tls and not tls:
        raise RuntimeError(f"{address} uses TLS: pass --ca FILE instead of --insecure")
    if server_tls is False and tls:
        raise RuntimeError(
            f"{address} does not use TLS: check the port; for a SuperLink that was started with "
            "--insecure, pass --insecure instead of --ca"
        )


def _uses_tls(address: str) -> bool | None:
    """Return whether the server completes a TLS handshake; None without a clear response."""
    host, _, port = address.rpartition(":")
    try:  # the certificate is not verified, because nothing is sent
        ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=TLS_PATIENCE)
        return True
    except ssl.SSLError as error:
        return False if error.reason == NOT_TLS else None
    except OSError:
        return None


def await_admission(
    fleet: str,
    trust: Certificates,
    k: int,
    report: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    pause: float = 2.0,
) -> None:
    """Wait until the server admits client k's SuperNode; return also if there is no response.

    ``fleet``: ``host:port`` of the SuperLink's Fleet API; ``report``: receives one line if waiting
    is necessary; ``patience``: seconds to wait until the server detects the lost client; ``pause``:
    seconds between two tries.

    Raises ``ValueError`` for an invalid private key or a key that is not registered, and
    ``RuntimeError`` if the server rejects the client for another reason, such as a connection of
    the same client.
    """
    key = ssh_key(trust.key(k))
    deadline, reported = time.monotonic() + patience, False
    signer = NodeAuthClientInterceptor(key, key.public_key())
    with channel(fleet, trust.ca) as connection:
        stub = FleetStub(grpc.intercept_channel(connection, signer))
        while reason := _refusal(stub, key):
            if UNKNOWN in reason:
                raise ValueError(
                    f"{fleet}: the key of client {k} is not registered: register "
                    f"{trust.public(k).name} with fedmosaic register ({reason})"
                )
            if OTHER_API in reason:
                raise RuntimeError(
                    f"{fleet} is not a SuperLink's Fleet API (port 9092 by default; "
                    f"9093 is the operator's): {reason}"
                )
            if CLOCK in reason:
                raise RuntimeError(
                    f"{fleet} refuses client {k}: {reason}; check the clock of this machine"
                )
            if CONNECTED not in reason:
                raise RuntimeError(f"{fleet} refuses client {k}: {reason}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"client {k} is connected already: its key {trust.key(k)} is in use elsewhere"
                )
            if not reported:
                report(
                    f"{fleet} counts client {k} as connected; if it was killed, the server detects "
                    f"this within {NOTICED:.0f} s: waiting"
                )
            reported = True
            time.sleep(pause)


def channel(address: str, ca: Path | None, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """Return a channel to ``address``, with TLS if the authority's certificate ``ca`` is given."""
    if ca is None:
        plain: grpc.Channel = grpc.insecure_channel(address, options)
        return plain
    trusted = grpc.ssl_channel_credentials(ca.read_bytes())
    secure: grpc.Channel = grpc.secure_channel(address, trusted, options)
    return secure


def _refusal(stub: FleetStub, key: ec.EllipticCurvePrivateKey) -> str:
    """Return why the server rejects the key; empty if it accepts it or does not respond.

    An activated node is deactivated again at once, and the SuperNode activates it later.
    """
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=HEARTBEAT_MIN_INTERVAL
    )
    try:
        node = stub.ActivateNode(request, timeout=CALL).node_id
        stub.DeactivateNode(DeactivateNodeRequest(node_id=node), timeout=CALL)
    except grpc.RpcError as error:
        if "CERTIFICATE_VERIFY_FAILED" in details(error):
            raise RuntimeError(
                f"the server's certificate is not accepted; check that --ca is its authority and "
                f"that it names this host ({details(error)})"
            ) from None
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return ""
        return details(error) or code.name
    return ""
