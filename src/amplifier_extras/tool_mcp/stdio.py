"""A server in our own process tree: JSON lines on its stdin and stdout.

The SDK has a similar transport. It leaves processes that left the server's process group, takes
four seconds for a server that ignores SIGTERM, and leaves everything if this process is killed; the
process runner of this package does better on all three.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from amplifier_extras.tool_mcp.connection import MAX_MESSAGE, Program
from amplifier_support.process.commands import Command, CommandError, Ended, ProcessRunner

_LEAVE_SECONDS = 1.0
"""Seconds a server has to exit once its stdin is closed."""

_MAX_WAITING = 2 * MAX_MESSAGE
_READ_SIZE = 64 * 1024


class StdioTransport:
    """A transport of the SDK over one run of a program; an asynchronous context manager.

    Args:
        program: The program to start.
        runner: Starts it, and kills what it leaves running.
        on_error_output: Called with output of the program that is not a message.
        on_end: Called when it has ended.

    Attributes:
        problem: Why it could not be started, or how it ended; None while it runs.
    """

    def __init__(
        self,
        program: Program,
        runner: ProcessRunner,
        on_error_output: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._program = program
        self._runner = runner
        self._on_error_output = on_error_output
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._lines: deque[bytearray] = deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._tasks: list[asyncio.Task[None]] = []
        self._descriptors: list[int] = []
        self.problem: str | None = None

    async def __aenter__(
        self,
    ) -> tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]:
        to_session, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, from_session = anyio.create_memory_object_stream[Any](0)
        self._to_session, self._from_session = to_session, from_session
        self._ends = (to_session, incoming, outgoing, from_session)
        their_stdin, self._stdin = self._pipe()
        self._stderr, their_stderr = self._pipe()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stderr, False)
        self._loop.add_reader(self._stderr, self._take_error_output)
        self._process = asyncio.create_task(self._run((their_stdin, their_stderr)))
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._pass_on())]
        return incoming, outgoing

    async def __aexit__(self, *exc_info: object) -> None:
        """End the program: close its stdin, then kill it with everything it has started."""
        closing = asyncio.ensure_future(self._close())
        while not closing.done():
            # Even if the session is cancelled again: the rest of the program must be killed.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([closing])
        closing.result()

    async def _close(self) -> None:
        process = self._process
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._close_descriptor(self._stdin)
        await asyncio.wait([process], timeout=_LEAVE_SECONDS)
        process.cancel()
        await self._runner.close()
        await asyncio.wait([process])
        self._loop.remove_reader(self._stderr)
        self._take_error_output()
        for descriptor in list(self._descriptors):
            self._close_descriptor(descriptor)
        for end in self._ends:
            end.close()

    async def _run(self, streams: tuple[int, int]) -> None:
        try:
            folder = os.open(self._program.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                command = Command(self._program.argv, self._program.environment, folder, streams)
                ended = await self._runner.run(command, timeout=None, output=self._take_output)
                self.problem = _ending(ended)
            finally:
                os.close(folder)
        except OSError as error:
            self.problem = f"cannot open its folder {self._program.folder}: {error.strerror}"
        except CommandError as error:
            self.problem = str(error)
        finally:
            self.problem = self.problem or "it was stopped"
            self._has_ended = True
            self._arrived.set()
            self._on_end()

    # -- output ------------------------------------------------------------------------

    def _take_output(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._unread += line
            if self._unread and not self._unread.isspace():
                self._lines.append(self._unread)
                self._waiting += len(self._unread)
                self._arrived.set()
            self._unread = bytearray()
        self._unread += rest
        if len(self._unread) > MAX_MESSAGE:
            self._give_up(f"it wrote a line longer than {MAX_MESSAGE} bytes")
        elif self._waiting > _MAX_WAITING:
            self._give_up("it wrote messages faster than they can be read")

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._unread.clear()
        self._lines.clear()
        self._waiting = 0
        self._process.cancel()

    async def _pass_on(self) -> None:
        """Pass messages on as fast as they are taken, so that waiting ones are counted."""
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                while self._lines:
                    line = self._lines.popleft()
                    self._waiting -= len(line)
                    message = self._message(line)
                    del line  # It may be long, and the session has its content.
                    if message is None:
                        await asyncio.sleep(0)
                    else:
                        await self._to_session.send(message)
                        del message
                if self._has_ended:
                    break
                self._arrived.clear()
                await self._arrived.wait()
        self._to_session.close()

    def _message(self, line: bytearray) -> SessionMessage | None:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            # Many programs print a greeting on stdout. Callers that expect a response have a time
            # limit.
            self._on_error_output(b"[not a message, on stdout] " + line[:_READ_SIZE] + b"\n")
            return None

    def _take_error_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr, _READ_SIZE):
                self._on_error_output(data)
                if len(data) < _READ_SIZE:
                    break

    # -- input -------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            async for message in self._from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._write(text.encode() + b"\n")
        except OSError:
            # It no longer reads: callers must not wait for responses.
            self._to_session.close()

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._stdin, left) :]
            except BlockingIOError:
                writable = self._loop.create_future()
                self._loop.add_writer(self._stdin, _wake, writable)
                try:
                    await writable
                finally:
                    self._loop.remove_writer(self._stdin)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._descriptors += ends
        return ends

    def _close_descriptor(self, descriptor: int) -> None:
        if descriptor in self._descriptors:
            self._descriptors.remove(descriptor)
            os.close(descriptor)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ending(ended: Ended) -> str:
    code = ended.exit_code or 0
    return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
