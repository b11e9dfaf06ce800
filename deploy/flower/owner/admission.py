"""Check the connection and the client's key at a SuperLink before a SuperNode connects.

Without a connection a SuperNode retries forever and does not say why. A rejected SuperNode ends
with a traceback. A SuperNode that was killed is rejected after its restart until the server has
missed its heartbeats. ``fedmosaic node`` therefore checks both first, with the client's key.
"""

import os
import re
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
WAITING = "waiting for the SuperLink at "  #: beginning of a reason to wait
TLS_PATIENCE = 5.0  #: timeout of the connection and the handshake in seconds
NOT_TLS = "WRONG_VERSION_NUMBER"  #: OpenSSL's error for a response without TLS
SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
CERTIFICATES = {
    "CERTIFICATE_VERIFY_FAILED.*expired": "it has expired; renew it on the server with fedmosaic "
    "certs",
    "CERTIFICATE_VERIFY_FAILED.*not yet valid": "it is not valid yet; check the clocks of both "
    "machines",
    "CERTIFICATE_VERIFY_FAILED": "it is of another authority; pass the ca.crt of the server's "
    "certs folder as --ca",
    "Hostname Verification|not in peer certificate": "it does not name {host}; make it with "
    "fedmosaic certs --host {host}, or connect by a name that it has",
}
"""Errors of a TLS handshake, as regular expressions, and what they mean. Waiting does not help."""
CAUSES = {
    "HTTP proxy": "{proxy} does not let the connection through",
    "errors resolving|DNS resolution": "this machine finds no address of {host}",
    "Connection refused": "no program listens there; start the SuperLink, or check the port",
    "No route|unreachable": "this machine has no route to {host}",
    "timed? ?out|Deadline": "there is no response; check the address, and firewalls on the way",
}
"""Errors of a connection, as regular expressions, and what they mean."""
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables in which gRPC looks for a proxy, the first one counts."""


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
    """Wait until the server admits client k's SuperNode.

    ``fleet``: ``host:port`` of the SuperLink's Fleet API; ``report``: receives one line for each
    new reason to wait; ``patience``: seconds to wait until the server detects the lost client;
    ``pause``: seconds between two tries.

    Raises ``ValueError`` for an invalid private key or a key that is not registered, and
    ``RuntimeError`` for a certificate that is not accepted, or if the server rejects the client for
    another reason, such as a connection of the same client.
    """
    key = ssh_key(trust.key(k))
    deadline, reported = time.monotonic() + patience, ""
    signer = NodeAuthClientInterceptor(key, key.public_key())
    with channel(fleet, trust.ca) as connection:
        stub = FleetStub(grpc.intercept_channel(connection, signer))
        while reason := _refusal(stub, key, fleet):
            if reason.startswith(WAITING):
                if reason != reported:
                    report(reason)
                reported = reason
                time.sleep(pause)
                continue
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
            if reason != reported:
                report(
                    f"{fleet} counts client {k} as connected; if it was killed, the server detects "
                    f"this within {NOTICED:.0f} s: waiting"
                )
            reported = reason
            time.sleep(pause)


def cause(address: str, text: str, *, direct: bool = False) -> str:
    """Return the meaning of gRPC's ``text`` about a connection to ``address``, with the text.

    ``direct``: whether the connection uses no proxy. Raises ``RuntimeError`` for a certificate that
    is not accepted.
    """
    host = address.rpartition(":")[0]
    proxy = "" if direct else proxy_of(host)
    for errors in (CERTIFICATES, CAUSES):
        for pattern, meaning in errors.items():
            if re.search(pattern, text):
                why = f"{meaning.format(host=host, proxy=proxy)} ({text})"
                if errors is CERTIFICATES:
                    raise RuntimeError(
                        f"{address}: the server's certificate is not accepted: {why}"
                    )
                return f"{address}: {why}" + (f"; there is {proxy}" if proxy else "")
    return f"{address}: {text}"


def proxy_of(host: str) -> str:
    """Return the proxy of connections to ``host`` and its environment variable; empty without."""
    name = next((name for name in PROXIES if os.environ.get(name)), "")
    direct = next(filter(None, map(os.environ.get, ("no_grpc_proxy", "no_proxy"))), "")
    ends = [end.strip() for end in direct.split(",") if end.strip()]
    if not name or any(end == "*" or host.endswith(end) for end in ends):
        return ""
    return f"the proxy {os.environ[name]} of the variable {name}; no_proxy={host} avoids it"


def channel(address: str, ca: Path | None, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """Return a channel to ``address``, with TLS if the authority's certificate ``ca`` is given."""
    if ca is None:
        plain: grpc.Channel = grpc.insecure_channel(address, options)
        return plain
    trusted = grpc.ssl_channel_credentials(ca.read_bytes())
    secure: grpc.Channel = grpc.secure_channel(address, trusted, options)
    return secure


def _refusal(stub: FleetStub, key: ec.EllipticCurvePrivateKey, fleet: str) -> str:
    """Return why the server rejects the key or does not respond; empty if it accepts it.

    An activated node is deactivated again at once, and the SuperNode activates it later.
    """
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=HEARTBEAT_MIN_INTERVAL
    )
    try:
        node = stub.ActivateNode(request, timeout=CALL).node_id
        stub.DeactivateNode(DeactivateNodeRequest(node_id=node), timeout=CALL)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        if code in SILENT:
            return f"{WAITING}{cause(fleet, details(error) or code.name)}"
        return details(error) or code.name
    return ""
