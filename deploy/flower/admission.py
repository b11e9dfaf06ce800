"""Before anything connects to a SuperLink: does it speak TLS, and would it let this key in?

TLS on one side only makes gRPC try for ever without a word of why. A SuperNode that is refused ends
with a traceback, and one that was killed is refused when it is started again, until the server has
missed its heartbeats. So both are checked first, ``fedmosaic node`` with the client's own key.
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
from deploy.machines.certificates import Certificates

NOTICED = 60.0  #: seconds until the server notices a lost SuperNode: two of Flower's heartbeats
PATIENCE = NOTICED + 15.0
CALL = 10.0  #: seconds for one answer
UNKNOWN = "No SuperNode found"  #: Flower's words for a key that is not registered
CONNECTED = "could not be activated"  #: and for one whose SuperNode it counts as connected
OTHER_API = "Method not found"  #: gRPC's answer where another service listens
TLS_PATIENCE = 5.0  #: seconds for a connection and for the handshake
NOT_TLS = "WRONG_VERSION_NUMBER"  #: OpenSSL's word for an answer that is no TLS record


def check_tls(address: str, tls: bool) -> None:
    """Raise ``RuntimeError`` where the server at ``address`` has TLS and this side has not, or the
    reverse; with the option that fits.

    Return if nobody answers: the server may be about to start.
    """
    spoken = _speaks_tls(address)
    if spoken and not tls:
        raise RuntimeError(f"{address} speaks TLS: give --ca FILE in place of --insecure")
    if spoken is False and tls:
        raise RuntimeError(
            f"{address} does not speak TLS: is it the right port? A SuperLink that was started "
            f"with --insecure wants --insecure in place of --ca"
        )


def _speaks_tls(address: str) -> bool | None:
    """Whether a server answers a handshake with TLS; None if nobody answers, or unclear."""
    host, _, port = address.rpartition(":")
    try:  # who it is does not matter yet: nothing is sent
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
    tell: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    pause: float = 2.0,
) -> None:
    """Return once client k's SuperNode would be let in, or if the server does not answer.

    ``fleet``: ``host:port`` of the SuperLink's Fleet API; ``tell``: gets one line, if there is
    something to wait for; ``patience``: seconds to wait for the server to notice that the client
    was lost; ``pause``: seconds between two tries.

    Raises ``ValueError``: the key is no private key, or is not registered. ``RuntimeError``: the
    server refuses the client for another reason, such as that it is still connected.
    """
    key = ssh_key(trust.key(k))
    deadline, told = time.monotonic() + patience, False
    signer = NodeAuthClientInterceptor(key, key.public_key())
    with channel(fleet, trust.ca) as connection:
        stub = FleetStub(grpc.intercept_channel(connection, signer))
        while reason := _refusal(stub, key):
            if UNKNOWN in reason:
                raise ValueError(
                    f"{fleet} does not know the key of client {k}: register {trust.public(k).name} "
                    f"with fedmosaic register ({reason})"
                )
            if OTHER_API in reason:
                raise RuntimeError(
                    f"{fleet} is not a SuperLink's Fleet API (port 9092 unless told otherwise; "
                    f"9093 is the operator's): {reason}"
                )
            if CONNECTED not in reason:
                raise RuntimeError(f"{fleet} refuses client {k}: {reason}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"client {k} is connected already: its key {trust.key(k)} is in use elsewhere"
                )
            if not told:
                tell(
                    f"{fleet} counts client {k} as connected; if it was killed, the server notices "
                    f"within {NOTICED:.0f} s: waiting"
                )
            told = True
            time.sleep(pause)


def channel(address: str, ca: Path | None, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """A connection to come; with the authority's certificate ``ca`` it has TLS."""
    if ca is None:
        plain: grpc.Channel = grpc.insecure_channel(address, options)
        return plain
    trusted = grpc.ssl_channel_credentials(ca.read_bytes())
    secure: grpc.Channel = grpc.secure_channel(address, trusted, options)
    return secure


def _refusal(stub: FleetStub, key: ec.EllipticCurvePrivateKey) -> str:
    """Why the server refuses the key now; empty if it does not, or does not answer.

    A node that was let in is signed off again at once; the SuperNode then signs on.
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
                f"the server's certificate is not accepted; is --ca its authority, and its host in "
                f"it? ({details(error)})"
            ) from None
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return ""
        return details(error) or code.name
    return ""
