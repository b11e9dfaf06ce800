"""HTTP server with a few fixed, read-only paths, for browsers on this machine and for Prometheus.

It answers GET and nothing else. A page of another site could resolve its own name to this machine's
address (DNS rebinding) and then read the answers, so the ``Host`` of a request must be an address,
``localhost`` or an allowed name.
"""

import errno
import hashlib
import ipaddress
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, final

IDLE = 10.0  #: seconds after which a silent connection is closed
MOST = 64  #: open connections; each has a thread
LOCKED = "default-src 'none'; style-src 'unsafe-inline'"
"""Content-Security-Policy of a page that loads and runs nothing."""
ALONE = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Part of the Content-Security-Policy of every answer."""


@final
@dataclass(frozen=True)
class Route:
    """One path: ``body`` returns its current content; ``kind`` is the MIME type."""

    kind: str
    body: Callable[[], bytes]
    policy: str = "default-src 'none'"  #: Content-Security-Policy


@final
class Server(ThreadingMixIn, TCPServer):
    """Server of ``routes`` by path; ``with Server(…) as server: server.serve_forever()``.

    Raises ``ValueError``, one line, if ``host`` and ``port`` cannot be used; port 0 is a free one.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, host: str, port: int, routes: Mapping[str, Route], names: Collection[str] = ()
    ) -> None:
        """Listen. ``names``: allowed names of this machine in addition to ``host``."""
        self.routes = dict(routes)
        self._open: dict[socket.socket, None] = {}  #: connections, the oldest first
        self._changing = threading.Lock()
        self.names = {name.lower() for name in (host, "localhost", *names)}
        try:
            (self.address_family, *_, address), *_ = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
            super().__init__(address[:2], Handler)  # type: ignore[arg-type]  # both are stream
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"port {port} of {host} is in use; choose another one, or 0 for a free one"
                ) from None
            raise ValueError(f"{host}, port {port}: {error.strerror}") from None

    @property
    def url(self) -> str:
        """Address of the server, such as http://127.0.0.1:8080."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def local(self) -> bool:
        """Whether only programs on this machine reach the server."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def allows(self, host: str) -> bool:
        """Return whether a request may have this ``Host``: an address or an allowed name.

        The port is ignored, because it differs behind ``ssh -L``.
        """
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.names
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; with ``MOST`` others open, close the oldest one first.

        A client that sends its request byte by byte, for ever, therefore keeps nobody away.
        """
        with self._changing:
            if len(self._open) >= MOST:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has its answer."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the traceback of an error; a client that closed its connection is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


def serve(servers: Sequence[Server]) -> None:
    """Serve all servers, the first one in this thread."""
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End the block at Ctrl-C or SIGTERM, without an error."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@final
class Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = IDLE
    server: Server  # the only one that uses this handler
    server_version, sys_version = "fedmosaic", ""

    def do_GET(self) -> None:
        """Answer with the route's body, or with 304 if the browser has the same."""
        route = self.server.routes.get(self.path)
        if not self.server.allows(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN)
        elif route is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            body = route.body()
            tag = f'"{hashlib.sha256(body).hexdigest()}"'
            known = self.headers.get("If-None-Match") == tag
            self._answer(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK, route, body, tag)

    def refuse(self) -> None:
        """Answer a request of another method than GET."""
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse  # noqa: N815

    def _answer(
        self, status: HTTPStatus, route: Route | None = None, body: bytes = b"", tag: str = ""
    ) -> None:
        if route is None:
            body = f"{status.value} {status.phrase}\n".encode() * (self.command != "HEAD")
            route = Route("text/plain; charset=utf-8", bytes)
        self.send_response(status)
        self.send_header("Content-Type", route.kind)
        self.send_header("Content-Security-Policy", f"{route.policy}; {ALONE}")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-cache")
        if tag:
            self.send_header("ETag", tag)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        if status is HTTPStatus.NOT_MODIFIED:
            body = b""
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""
