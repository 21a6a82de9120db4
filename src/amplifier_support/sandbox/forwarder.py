"""Passes connections to a local port on to a UNIX socket, in the network of commands.

The launcher of commands forks it: nothing here may cost as much as starting a command.
"""

from __future__ import annotations

import _socket
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

PORT = 3128
"""The port, of which there is one in each network of commands."""

_CHUNK = 65536


def proxy_variables() -> dict[str, str]:
    """The environment variables with which programs find the port."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    variables = dict.fromkeys((*names, *map(str.lower, names)), f"http://127.0.0.1:{PORT}")
    return {**variables, **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")}


def listen() -> _socket.socket:
    """A socket that takes connections to the port.

    Raises:
        OSError: The system refused.
    """
    server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    server.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", PORT))
    server.listen(100)
    return server


def serve(server: _socket.socket, path: str) -> None:
    """Serve for ever, each connection by a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    while True:
        descriptor, _ = server._accept()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            if os.fork() == 0:
                server.close()
                _pass_on(_socket.socket(fileno=descriptor), path)
                os._exit(0)
        except OSError:
            pass  # There are too many processes; this connection ends.
        os.close(descriptor)


def _pass_on(client: _socket.socket, path: str) -> None:
    proxy = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        proxy.connect(path)
        other = {client: proxy, proxy: client}
        open_ends = [client, proxy]
        while open_ends:
            for end in select.select(open_ends, [], [])[0]:
                data = end.recv(_CHUNK)
                if data:
                    other[end].sendall(data)
                else:
                    open_ends.remove(end)
                    other[end].shutdown(_socket.SHUT_WR)
    except OSError:
        pass  # One of the two is gone, so there is nothing to pass on.
