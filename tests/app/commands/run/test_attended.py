"""A terminal that watches a detached run never delays it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.json_rpc import Handle, Peer, RpcError
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.attended import SocketOutput, _Place

LINE = b"x" * 999_999 + b"\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The run's end of a connection, and the terminal's."""
    run, terminal = socket.socketpair()
    with run, terminal:
        yield run, terminal


async def test_a_terminal_that_reads_slowly_gets_everything(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    run, terminal = ends
    output = SocketOutput(run)
    # A write that waited for the terminal would never return.
    assert all(output.write_bytes(LINE) for _ in range(10))
    assert not output.sent.is_set()
    read = bytearray()
    while len(read) < 10 * len(LINE):
        read += await asyncio.to_thread(terminal.recv, 50_000)
    assert bytes(read) == LINE * 10
    await asyncio.wait_for(output.sent.wait(), 60)


class Place:
    """The place of a run that asks, and connections to it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        steering = SimpleNamespace(take_back=list[str])
        session: Any = SimpleNamespace(steering=steering)
        watched: Any = SimpleNamespace(peers=set(), saved=SimpleNamespace(size=0))
        self.place = _Place(session, watched)
        self._address = str(folder / "socket")
        self._stack = stack
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(self._address)
        listener.listen()
        listener.setblocking(False)
        self.accepting = asyncio.create_task(self.place.accept(listener))

    def connect(self) -> socket.socket:
        connection = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(self._address)
        return connection

    def join(self, handle: Handle) -> tuple[Peer, socket.socket]:
        connection = self.connect()
        peer = Peer(connection.fileno(), Output(connection.fileno()), handle)
        serving = asyncio.create_task(peer.serve())
        self.place._serving.add(serving)  # Kept, and waited for, like the other end of it.
        return peer, connection


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Place]:
    with ExitStack() as stack:
        run = Place(tmp_path, stack)
        yield run
        run.accepting.cancel()
        await asyncio.wait_for(run.place.close(), 10)


async def test_the_terminal_that_types_gets_the_number_of_questions_that_wait(run: Place) -> None:
    received: asyncio.Queue[Any] = asyncio.Queue()
    answers: asyncio.Queue[str] = asyncio.Queue()

    def handle(method: str, params: dict[str, Any]) -> Any:
        received.put_nowait((method, params.get("count")))
        return answers.get() if method == "ask" else None

    peer, _ = run.join(handle)
    await peer.request("attach", {})
    questions = [
        asyncio.create_task(run.place.ask(f"question {number}?", ["Allow", "Deny"], None))
        for number in range(3)
    ]
    while await received.get() != ("ask", None):
        pass
    while await received.get() != ("waiting", 2):
        pass
    for _ in questions:
        answers.put_nowait("Allow")
    assert await asyncio.gather(*questions) == ["Allow"] * 3
    while await received.get() != ("waiting", 0):
        pass


async def test_a_terminal_that_leaves_before_it_gets_the_place_does_not_keep_it(
    run: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_app.commands.run.attended._ALIVE_SECONDS", 0.2)
    pinged = asyncio.Event()

    def stopped(method: str, params: dict[str, Any]) -> Any:
        if method == "ping":
            pinged.set()
            return asyncio.get_running_loop().create_future()  # never an answer
        return None

    first, _ = run.join(stopped)
    await first.request("attach", {})
    second, connection = run.join(lambda method, params: None)
    place = second.request("attach", {})
    await pinged.wait()
    connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(RpcError):
        await place
    await asyncio.sleep(0.5)
    third, _ = run.join(lambda method, params: "Allow")
    assert await third.request("attach", {}) == {}
    assert await run.place.ask("question?", ["Allow", "Deny"], None) == "Allow"


@pytest.mark.parametrize("sent", [b"", b'{"jsonrpc":"2.0","id":1,"meth'])
async def test_a_terminal_that_never_leaves_does_not_delay_the_end(run: Place, sent: bytes) -> None:
    run.connect().sendall(sent)
    while not run.place._outputs:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (unread,) = run.place._outputs.values()
    unread.write_bytes(LINE)
    closing = asyncio.create_task(run.place.close())
    while not run.place._is_over:  # noqa: ASYNC110
        await asyncio.sleep(0)
    # While the first has time to read the rest, another one comes.
    run.connect().sendall(sent)
    await asyncio.wait_for(closing, 10)


async def test_a_terminal_that_reads_nothing_is_disconnected_when_its_buffer_is_full(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    run, terminal = ends
    output = SocketOutput(run)
    written = 0
    while output.write_bytes(LINE):
        written += 1
        assert written < 100
    assert written > 10
    assert output.sent.is_set()
    rest = 0
    while part := terminal.recv(1 << 20):
        rest += len(part)
    assert rest < written * len(LINE)
