"""A terminal that watches a detached run never delays it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.json_rpc import Peer
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


async def test_the_terminal_that_types_gets_the_number_of_questions_that_wait(
    tmp_path: Path,
) -> None:
    session: Any = None  # It has no part in what is asked.
    watched: Any = SimpleNamespace(peers=set())
    place = _Place(session, watched)
    received: asyncio.Queue[Any] = asyncio.Queue()
    answers: asyncio.Queue[str] = asyncio.Queue()

    def handle(method: str, params: dict[str, Any]) -> Any:
        received.put_nowait((method, params.get("count")))
        return answers.get() if method == "ask" else None

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        listener.setblocking(False)
        accepting = asyncio.create_task(place.accept(listener))
        connection.connect(str(tmp_path / "socket"))
        peer = Peer(connection.fileno(), Output(connection.fileno()), handle)
        serving = asyncio.create_task(peer.serve())
        await peer.request("attach", {})
        questions = [
            asyncio.create_task(place.ask(f"question {number}?", ["Allow", "Deny"], None))
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
        accepting.cancel()
        connection.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([accepting, serving, *place._serving])


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
