"""TLS on one side only: gRPC then tries for ever and does not say why, so it is asked for first."""

from __future__ import annotations

import socket
import ssl

PATIENCE = 5.0  #: seconds for a connection and for the handshake
NOT_TLS = "WRONG_VERSION_NUMBER"  #: OpenSSL's word for an answer that is no TLS record


def check(address: str, tls: bool) -> None:
    """Refuse to go on where the other side has TLS and this one has not, or the reverse.

    Returns if nobody answers: the server may be about to start.

    Args:
        address: ``host:port`` of a gRPC server, an IPv6 address in brackets.
        tls: whether this side is going to use TLS.

    Raises:
        RuntimeError: what is there is of the other kind; with the option that fits.
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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # who it is does not matter yet: nothing is sent
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except ssl.SSLError as error:
        return False if error.reason == NOT_TLS else None
    except OSError:
        return None
