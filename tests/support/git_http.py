"""Git repositories over smart HTTP with TLS: `git http-backend` behind a server on loopback.

The certificate in `tls/` was made for these tests. It names only this machine, and its key is
no secret.
"""

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

CERTIFICATE = Path(__file__).with_name("tls") / "cert.pem"
_KEY = CERTIFICATE.with_name("key.pem")


def with_tls(server: ThreadingHTTPServer) -> None:
    """Have a server speak TLS with the certificate of the tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, _KEY)
    # The handshake is made by the thread that answers, so that one client holds up no other.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )


class Request(NamedTuple):
    """What a client asked for."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class GitServer:
    """Serves every repository below a folder; close it when done.

    Args:
        root: The folder.
        user: The `name:password` that everybody needs; None lets everybody in.

    Attributes:
        url: Its beginning, `https://127.0.0.1:…`.
        requests: What it was asked, in order.
        before: Called with each request before it is answered; what it returns, if anything, is
            answered instead, as `(status, headers)`.
    """

    def __init__(self, root: Path, *, user: str | None = None) -> None:
        self.root = root
        self.user = user
        self.requests: list[Request] = []
        self.before: Callable[[Request], tuple[int, dict[str, str]] | None] = lambda request: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        with_tls(self._server)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        request = Request(handler.command, handler.path, dict(handler.headers), body)
        self.requests.append(request)
        instead = self.before(request)
        if instead is not None:
            _reply(handler, *instead, b"")
        elif self.user is not None and not self._let_in(request):
            _reply(handler, 401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
        else:
            _reply(handler, *self._backend(request))

    def _let_in(self, request: Request) -> bool:
        token = base64.b64encode((self.user or "").encode()).decode()
        return request.headers.get("Authorization") == f"Basic {token}"

    def _backend(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        path, _, query = request.path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=request.body,
            capture_output=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.root),
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": request.method,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
                "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
                "REMOTE_ADDR": "127.0.0.1",
            },
            check=False,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if line)
        status = int(headers.pop("Status", "200").partition(" ")[0])
        return status, headers, content


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts: list[bytes] = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


def _reply(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
