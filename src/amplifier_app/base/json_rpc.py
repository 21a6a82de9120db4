"""A JSON-RPC 2.0 peer over a byte stream: one message a line, in UTF-8. Both sides can call.

https://www.jsonrpc.org/specification, without batches. How a request is cancelled depends on the protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from amplifier_app.base.json_text import json_line
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_support.named_tuple import NamedTuple

PARSE_ERROR, INVALID_REQUEST, NO_SUCH_METHOD = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, CANCELLED = -32602, -32603, -32800

_MAX_LINE = 64 * 1024 * 1024
"""Bytes of a message; images of a prompt are part of it."""
_CHUNK = 1 << 16


class RpcError(Exception):
    """An error response.

    Attributes:
        code: Its number.
        message: One sentence.
        data: More about it, as JSON; None for nothing.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def as_json(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


def claim_stdin() -> int:
    """Reserve stdin for messages, and return its descriptor; anything else that reads stdin gets nothing.

    Works on file descriptors, so it includes child processes.
    """
    kept = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return kept


Handle = Callable[[str, dict[str, Any]], "Awaitable[Any] | Any"]
"""Answers a request, or takes a notification: the method and its parameters.

It is called in the order in which messages arrive; what it returns may be awaitable, and is the result.

Raises:
    RpcError: The error to answer with; also when the result is awaited.
"""


class Cancellation(NamedTuple):
    """The message with which either side cancels a request that it has sent.

    Attributes:
        method: The notification; its `requestId` is the id of the request.
        is_answered: Whether a cancelled request is still answered, with the error for it.
    """

    method: str
    is_answered: bool


ACP_CANCELLATION = Cancellation("$/cancel_request", is_answered=True)
MCP_CANCELLATION = Cancellation("notifications/cancelled", is_answered=False)


class Peer:
    """One end of a connection.

    Args:
        source: The descriptor to read from.
        output: Where to write.
        handle: Receives requests and notifications.
        cancellation: How requests are cancelled.
        closed: The error of requests that are not answered before the connection ends.
    """

    def __init__(
        self,
        source: int,
        output: Output,
        handle: Handle,
        cancellation: Cancellation = ACP_CANCELLATION,
        *,
        closed: str = "the connection is closed",
    ) -> None:
        self._source = source
        self._output = output
        self._handle = handle
        self._cancellation = cancellation
        self._closed = closed
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[Any, asyncio.Future[Any]] = {}
        self._running: dict[Any, asyncio.Future[Any]] = {}
        self._ended = asyncio.Event()
        self._line: list[bytes] = []
        self._length = 0

    async def serve(self, stuck_after: float | None = None) -> None:
        """Receive messages until the other side closes the connection.

        Args:
            stuck_after: Seconds that this process has to end after that. Then it is killed: something blocks its
                event loop. None for no limit.
        """
        loop = asyncio.get_running_loop()
        # Any kind of file works in a thread, and one that does not end does not keep the process alive.
        threading.Thread(target=self._read, args=(loop, stuck_after), daemon=True).start()
        await self._ended.wait()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RpcError(INTERNAL_ERROR, self._closed))
                future.exception()  # Perhaps no one waits any more.

    def request(self, method: str, params: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Call the other side; cancelling the future cancels the request.

        Raises:
            RpcError: When awaited: the other side answered with it, or the connection is closed.
        """
        id, future = next(self._ids), asyncio.get_running_loop().create_future()
        if self._ended.is_set():
            future.set_exception(RpcError(INTERNAL_ERROR, self._closed))
            return future
        self._waiting[id] = future
        future.add_done_callback(lambda _: self._finish(id, future))
        self._send({"id": id, "method": method, "params": params})
        return future

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    async def cancel_all(self) -> None:
        """Cancel all requests of the other side, and wait until they have ended."""
        running = list(self._running.values())
        for request in running:
            request.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _finish(self, id: int, future: asyncio.Future[Any]) -> None:
        self._waiting.pop(id, None)
        if future.cancelled():
            self.notify(self._cancellation.method, {"requestId": id})

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json_line({"jsonrpc": "2.0", **message})
        with self._sending:  # Threads of modules log warnings, too.
            self._output.write(line)

    # Receiving

    def _read(self, loop: asyncio.AbstractEventLoop, stuck_after: float | None) -> None:
        """Read until the end, in a thread of its own."""
        data = b"-"
        while data:
            try:
                data = os.read(self._source, _CHUNK)
            except OSError:  # closed by the other side, or by this one
                data = b""
            try:
                loop.call_soon_threadsafe(self._feed, data)
            except RuntimeError:  # the loop is closed
                return
        if stuck_after is not None:
            time.sleep(stuck_after)
            os.kill(os.getpid(), signal.SIGKILL)

    def _feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._keep(line)
            whole, is_too_long = b"".join(self._line), self._length > _MAX_LINE
            self._line, self._length = [], 0
            if is_too_long:
                limit = f"a message is longer than {_MAX_LINE:,} bytes"
                self._refuse(None, RpcError(INVALID_REQUEST, limit))
            elif whole.strip():
                self._receive(whole)
        self._keep(rest)
        if not data:
            self._ended.set()

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= _MAX_LINE:
            self._line.append(part)
        else:
            self._line.clear()

    def _receive(self, line: bytes) -> None:
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(None, RpcError(PARSE_ERROR, "the message is not valid JSON"))
            return
        if not isinstance(message, dict):
            self._refuse(None, RpcError(INVALID_REQUEST, "a message must be a JSON object"))
            return
        fields = cast("dict[str, Any]", message)
        id, method = fields.get("id"), fields.get("method")
        if "method" not in fields and ("result" in fields or "error" in fields):
            self._answered(id, fields)
        elif not isinstance(method, str) or not isinstance(id, str | int | None):
            known = id if isinstance(id, str | int) else None
            self._refuse(known, RpcError(INVALID_REQUEST, "expected 'method' and a plain 'id'"))
        else:
            self._called(method, fields)

    def _answered(self, id: Any, fields: dict[str, Any]) -> None:
        future = self._waiting.get(id) if isinstance(id, int) else None
        if future is None or future.done():  # an answer after it was cancelled
            return
        error = fields.get("error")
        if error is None:
            future.set_result(fields.get("result"))
            return
        details = cast("dict[str, Any]", error if isinstance(error, dict) else {})
        code, text = details.get("code"), details.get("message")
        future.set_exception(
            RpcError(
                code if isinstance(code, int) else INTERNAL_ERROR,
                text if isinstance(text, str) else "the request failed",
                details.get("data"),
            )
        )

    def _called(self, method: str, fields: dict[str, Any]) -> None:
        params = fields.get("params")
        arguments = cast("dict[str, Any]", params if isinstance(params, dict) else {})
        is_request = "id" in fields
        if method == self._cancellation.method and not is_request:
            id = arguments.get("requestId")
            running = self._running.get(id) if isinstance(id, str | int) else None
            if running is not None:
                running.cancel()
            return
        try:
            if params is not None and not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "'params' must be a JSON object")
            result = self._handle(method, arguments)
        except RpcError as error:
            if is_request:
                self._refuse(fields["id"], error)
            return
        # Nothing that a message says may end the process.
        except Exception as error:
            if is_request:
                self._refuse(fields["id"], self._internal_error(method, error))
            return
        if not is_request:
            return
        if not isinstance(result, Awaitable):
            self._send({"id": fields["id"], "result": result})
            return
        running = asyncio.ensure_future(result)
        self._running[fields["id"]] = running
        # Also if it is cancelled before it has begun.
        running.add_done_callback(lambda _: self._answer(fields["id"], method, running))

    def _answer(self, id: Any, method: str, ended: asyncio.Future[Any]) -> None:
        if self._running.get(id) is ended:
            del self._running[id]
        if ended.cancelled():
            if self._cancellation.is_answered:
                self._refuse(id, RpcError(CANCELLED, "the request was cancelled"))
        elif (error := ended.exception()) is None:
            self._send({"id": id, "result": ended.result()})
        elif isinstance(error, RpcError):
            self._refuse(id, error)
        else:
            self._refuse(id, self._internal_error(method, error))

    def _refuse(self, id: Any, error: RpcError) -> None:
        self._send({"id": id, "error": error.as_json()})

    def _internal_error(self, method: str, error: BaseException) -> RpcError:
        text = f"{type(error).__name__}: {error}"
        to_stderr(f"amplifier: {method} failed: {text}")
        return RpcError(INTERNAL_ERROR, text)
