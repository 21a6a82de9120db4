"""HTTP for programs and browsers on this machine only."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import to_stderr

_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost", "[::1]")


class Refused(Exception):
    """A request that is refused before it is read.

    Attributes:
        status: The status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LocalHandler(BaseHTTPRequestHandler):
    """One connection; a base class."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def refuse_strangers(self) -> None:
        """Check that no web site has sent the request, through a name of its own or a script.

        Raises:
            Refused: It may have.
        """
        if not _is_local(self.headers.get("Host") or ""):
            raise Refused(403, "unknown host")
        origin = self.headers.get("Origin")
        if origin is not None and not _is_local(origin.partition("://")[2]):
            raise Refused(403, "requests of other origins are refused")

    def answer(self, status: int, body: bytes, content_type: str, **headers: str) -> None:
        """Send an answer; `headers` have `_` for `-` in their names."""
        self.send_response(status)
        if body:
            self.send_header("Content-Type", content_type)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in one line, and nothing about a client that has gone away."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            to_stderr(f"amplifier: a request failed: {error!r}")


@contextlib.contextmanager
def serving(handler: type[LocalHandler], port: int, option: str) -> Generator[str]:
    """Serve in threads; yields the address.

    Args:
        handler: Serves a connection.
        port: The port; 0 for any that is free.
        option: The option that the port comes from.

    Raises:
        UsageError: The port cannot be used.
    """
    try:
        server = _Server((_HOST, port), handler)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{option}: cannot use port {port}: {reason}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{_HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _is_local(host: str) -> bool:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host) in _NAMES
