"""HTTP servers of the standard library on loopback, each in a thread of the test."""

import contextlib
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def send_head(self, kind: str, length: int, status: int = 200) -> None:
        """Send the status, and the headers of a body."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Generator[str]:
    """Serve until the block ends; yields the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
