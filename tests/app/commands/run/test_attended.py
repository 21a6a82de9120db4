"""A terminal that watches a detached run never delays it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from amplifier_app.commands.run.attended import SocketOutput

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
