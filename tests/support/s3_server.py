"""An S3 server on loopback (moto), and a line to it that can be cut.

with S3Server.running() as server:            # has the bucket `server.bucket`
    env = server.environment                  # what a client needs
    server.cut()                              # no one reaches it
    server.restore()
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Generator

from tests.support.waiting import wait_until

IS_INSTALLED = all(importlib.util.find_spec(name) for name in ("moto", "s3fs"))


class S3Server:
    """A server that is reached through a proxy.

    Args:
        port: The port of the server itself.
    """

    bucket = "batches"

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Generator[S3Server]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ},
        )
        server = cls(port)
        try:
            wait_until(lambda: _answers(port), 120, process=process)
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{cls.bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=60).close()
            yield server
        finally:
            server.cut()
            server._listener.close()
            process.kill()
            process.wait()

    @property
    def environment(self) -> dict[str, str | None]:
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret-of-the-bucket",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
        }

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self._is_cut.set()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Let clients connect again."""
        self._is_cut.clear()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut.is_set():
                client.close()
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            self._open |= {client, server}
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)
            back.join()
            self._open -= {client, server}


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
