"""Wheels built by hand, and a package index on loopback that serves them as slowly as a test needs."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amplifier_modules.provider_local.store import Part, Weights
from tests.support.http_server import QuietHandler, serving

CONTENT = b"GGUF" + bytes(range(256)) * 2000


def build_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A wheel of version 1.0 with these members, by path."""
    package = name.replace("-", "_")
    info = f"{package}-1.0.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        "Requires-Dist: a-dependency-that-exists-nowhere\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record)
    return wheel


def build_weights(folder: Path, parts: int = 2, content: bytes = CONTENT) -> Weights:
    """Weights in so many wheels in `folder`, and their catalogue entry."""
    size = -(-len(content) // parts)
    made: list[Part] = []
    for number in range(parts):
        member = f"weights_part_{number}/data.bin"
        piece = content[number * size : (number + 1) * size]
        build_wheel(folder, f"weights-part-{number}", {member: piece})
        made.append(Part(f"weights-part-{number}==1.0", member))
    return Weights(
        id="tiny",
        name="Tiny",
        file="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
        licence_stated_in="this test",
        attribution="absent",
        parts=tuple(made),
    )


class Index:
    """What a running index has served.

    Attributes:
        url: For the client's index setting.
        wheels: File names of the wheels it was asked for, in order.
        half_sent: Set when half of some wheel has been sent.
        go_on: Cleared, every wheel stops there until it is set.
        client_left: Set when a client closed the connection in the middle of a wheel.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.wheels: list[str] = []
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self.client_left = threading.Event()
        self.go_on.set()


@contextmanager
def running_index(folder: Path) -> Iterator[Index]:
    """Serves the wheels of `folder` in the simple repository format."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").split("/")[-1]
            if name.endswith(".whl"):
                self._send_wheel(name)
                return
            wheels = folder.glob(f"{name.replace('-', '_')}-*.whl")
            links = "".join(f'<a href="/files/{w.name}">{w.name}</a>' for w in wheels)
            self.send_head("text/html", len(links))
            self.wfile.write(links.encode())

        def do_HEAD(self) -> None:
            self.send_error(405)

        def _send_wheel(self, name: str) -> None:
            data = (folder / name).read_bytes()
            index.wheels.append(name)
            self.send_head("application/octet-stream", len(data))
            try:
                self.wfile.write(data[: len(data) // 2])
                index.half_sent.set()
                while not index.go_on.wait(0.05):
                    # A closed connection shows only when it is read from.
                    self.connection.settimeout(0.01)
                    try:
                        if self.connection.recv(1) == b"":
                            raise ConnectionResetError
                    except TimeoutError:
                        pass
                    finally:
                        self.connection.settimeout(None)
                self.wfile.write(data[len(data) // 2 :])
            except OSError:
                index.client_left.set()

    with serving(Handler) as url:
        index = Index(f"{url}/simple")
        try:
            yield index
        finally:
            index.go_on.set()
