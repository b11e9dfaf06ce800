"""Check the connection and the client's key at a SuperLink before a SuperNode connects.

Without a connection a SuperNode retries forever and does not say why. A rejected SuperNode ends
with a traceback. A SuperNode that was killed is rejected after its restart until the server has
missed its heartbeats. ``fedmosaic node`` therefore checks both first, with the client's key. A node
without a key checks the connection.
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
from deploy.flower.processes import direct_hosts

NOTICED = 60.0  #: seconds until the server detects a lost SuperNode: two of Flower's heartbeats
PATIENCE = NOTICED + 15.0
PAUSE = 2.0  #: seconds between two tries
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
    "HTTP proxy": "the proxy does not let the connection through; it must allow CONNECT to this "
    "port",
    "ALPN|HTTP/2|http1": "the answer is not HTTP/2, which gRPC needs; a proxy on the way must pass "
    "connections on unchanged, as a proxy for TCP does",
    "WRONG_VERSION_NUMBER": "the answer is not TLS; check the port, and proxies on the way",
    "errors resolving|DNS resolution": "this machine finds no address of {host}",
    "Connection refused": "no program listens there; start the SuperLink, or check the port",
    "No route|unreachable": "this machine has no route to {host}",
    "timed? ?out|Deadline|closed|closing|reset by": "there is no response; check the address, and "
    "firewalls and proxies on the way",
}
"""Errors of a connection, as regular expressions, and what they mean."""
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables in which gRPC looks for a proxy, the first one counts."""
DIRECT = "no_grpc_proxy"  #: environment variable that gRPC reads instead of no_proxy


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
    trust: Certificates | None,
    k: int,
    report: Callable[[str], None],
) -> None:
    """Wait until the server admits client k's SuperNode.

    ``fleet``: ``host:port`` of the SuperLink's Fleet API; ``trust``: None for a server without TLS,
    which admits every SuperNode; ``report``: receives one line for each new reason to wait.

    Raises ``ValueError`` for an invalid private key or a key that is not registered, and
    ``RuntimeError`` for a certificate that is not accepted, or if the server rejects the client for
    another reason, such as a connection of the same client.
    """
    key = ec.generate_private_key(ec.SECP256R1()) if trust is None else ssh_key(trust.key(k))
    deadline, reported = time.monotonic() + PATIENCE, set[str]()
    signer = NodeAuthClientInterceptor(key, key.public_key())
    proxied = [("grpc.enable_http_proxy", int(bool(proxy_of(fleet.rpartition(":")[0]))))]
    with channel(fleet, None if trust is None else trust.ca, proxied) as connection:
        stub = FleetStub(grpc.intercept_channel(connection, signer))
        while reason := _refusal(stub, key, fleet):
            if trust is None and UNKNOWN in reason:
                return  # the server answers, and registers the key that a SuperNode makes itself
            line = _reason_to_wait(reason, fleet, trust, k, late=time.monotonic() > deadline)
            meaning = line.partition(" (")[0]  # gRPC's own text changes from try to try
            if meaning not in reported:
                report(line)
            reported.add(meaning)
            time.sleep(PAUSE)


def _reason_to_wait(
    reason: str, fleet: str, trust: Certificates | None, k: int, *, late: bool
) -> str:
    """Return the line for a refusal that may end by itself, or raise the error of another one.

    ``late``: whether the server should have detected the loss of client k's former SuperNode.
    """
    if reason.startswith(WAITING):
        return reason
    if OTHER_API in reason:
        raise RuntimeError(
            f"{fleet} is not a SuperLink's Fleet API (port 9092 by default; "
            f"9093 is the operator's): {reason}"
        )
    if trust is not None and UNKNOWN in reason:
        raise ValueError(
            f"{fleet}: the key of client {k} is not registered: register "
            f"{trust.public(k).name} with fedmosaic register ({reason})"
        )
    if trust is None or CONNECTED not in reason:
        clock = "; check the clock of this machine" if CLOCK in reason else ""
        raise RuntimeError(f"{fleet} refuses client {k}: {reason}{clock}")
    if late:
        raise RuntimeError(
            f"client {k} is connected already: its key {trust.key(k)} is in use elsewhere"
        )
    return (
        f"{fleet} counts client {k} as connected; if it was killed, the server detects this "
        f"within {NOTICED:.0f} s: waiting"
    )


def cause(address: str, text: str, *, direct: bool = False) -> str:
    """Return the meaning of gRPC's ``text`` about a connection to ``address``, with the text.

    ``direct``: whether the connection uses no proxy. Raises ``RuntimeError`` for a certificate that
    is not accepted.
    """
    host = address.rpartition(":")[0]
    proxy = "" if direct else proxy_of(host)
    via = f"; the connection uses {proxy}" if proxy else ""
    for pattern, meaning in CERTIFICATES.items():
        if re.search(pattern, text):
            why = f"{meaning.format(host=host)}{via} ({text})"
            raise RuntimeError(f"{address}: the server's certificate is not accepted: {why}")
    for pattern, meaning in CAUSES.items():
        if re.search(pattern, text):
            return f"{address}: {meaning.format(host=host)}{via} ({text})"
    return f"{address}: {text}{via}"


def proxy_of(host: str) -> str:
    """Return the proxy of connections to ``host`` and its environment variable; empty without."""
    name = next((name for name in PROXIES if os.environ.get(name)), "")
    direct = os.environ.get(DIRECT) or direct_hosts()
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
