"""A detached run that terminals can join: all of them watch it, and one at a time types.

The socket in the session's folder speaks JSON-RPC. A terminal calls

    watch {}                        it is sent `begin` and the events since then, and from now on each event
    attach {}                       it is the one that types, unless another one does and answers
    steer {text}                    a message for the next step

and the run calls

    begin {size}                    (notification) the transcript up to a size in bytes is what happened before
    event {event, data, number}     (notification) what happens; `number` is the number of a tool call
    ask {prompt, options}           → the option
    ask_about_tool {request, agent} → the fields of a `ToolApprovalAnswer`
    ping {}                         whether it is there
    waiting {count}                 (notification) questions that wait for their turn
    unused {texts}                  (notification) messages that the run has not used
    end {size}                      (notification) nothing follows; the transcript up to a size has all of it

A terminal that is gone frees its place. What it was asked, and everything while there is none, is up to `--approve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

from amplifier_app.base.json_rpc import INVALID_REQUEST, NO_SUCH_METHOD, Peer, RpcError
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.subscriptions import observe
from amplifier_app.runtime.session import OpenSession
from amplifier_app.runtime.turns.turn import EventHandler, peek
from amplifier_app.sessions.background import SOCKET, socket_address
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer
from amplifier_core.events import (
    CONTENT_BLOCK_DELTA,
    ORCHESTRATOR_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REQUEST,
)
from amplifier_support.files import FILE_MODE, on_error

_MAX_UNREAD = 16 * 1024 * 1024
"""Bytes kept for a terminal that reads more slowly than the run writes; beyond, it is disconnected."""

_END_SECONDS = 0.5
"""Seconds that terminals have to read the rest when the run has ended."""

_ALIVE_SECONDS = 2.0
"""Seconds that the terminal that types has to answer when another one wants its place."""

_CHUNK = 1 << 16
_MAX_RECENT = 20_000
"""Events kept for terminals that join later; a loop that reports no model requests may emit more."""


@contextlib.asynccontextmanager
async def attended(
    session: OpenSession, approvals: Approvals, *, answers: bool
) -> AsyncGenerator[None]:
    """Let terminals watch a saved session, and one type in it, for the duration.

    Args:
        session: The session.
        approvals: What it asks.
        answers: Whether the terminal that types is asked what needs approval.
    """
    assert session.saved is not None
    folder = session.saved.path
    try:
        listener = _listen(folder)
    except (OSError, AttributeError) as error:  # a system or a disk without such sockets
        to_stderr(f"warning: no terminal can join this session: {error}")
        yield
        return
    watched = _Watched(session)
    observe(session.session.coordinator, watched, session.recorder)
    place = _Place(session, watched)
    if answers:
        approvals.attendant = place
    accepting = asyncio.create_task(place.accept(listener))
    try:
        yield
    finally:
        approvals.attendant = None
        await place.close()
        accepting.cancel()
        listener.close()
        (folder / SOCKET).unlink(missing_ok=True)


def _listen(folder: Path) -> socket.socket:
    """Raises OSError."""
    # Of a run that was killed: this process holds the lock of the session.
    (folder / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with on_error(listener.close):
        with socket_address(folder) as address:
            listener.bind(address)
        os.chmod(folder / SOCKET, FILE_MODE)
        listener.listen()
    listener.setblocking(False)
    return listener


class _Watched(Renderer):
    """Sends what `PlainRenderer` shows to the terminals that watch.

    One that joins later reads the transcript up to the last model request, and gets the events since from here.

    Attributes:
        saved: The session.
        peers: The terminals.
    """

    is_for_people = True

    def __init__(self, session: OpenSession) -> None:
        super().__init__()
        assert session.saved is not None
        self.visibility = session.renderer.visibility
        self.saved = session.saved
        self._size = session.saved.size
        self._recent: deque[dict[str, Any]] = deque(maxlen=_MAX_RECENT)
        self.peers: set[Peer] = set()

    def handlers(self) -> dict[str, EventHandler]:
        shown = PlainRenderer(Output(-1)).handlers()
        return dict.fromkeys((*shown, PROMPT_SUBMIT, ORCHESTRATOR_COMPLETE), self._send)

    def add(self, peer: Peer) -> None:
        """Send a terminal what it needs, and events from now on."""
        peer.notify("begin", {"size": self._size})
        for sent in self._recent:
            peer.notify("event", sent)
        self.peers.add(peer)

    def _send(self, event: str, data: dict[str, Any]) -> None:
        if event in (PROMPT_SUBMIT, PROVIDER_REQUEST):
            self._size = self.saved.size
            self._recent.clear()
        call_id = peek(data, "tool_call_id")
        # A request has the whole conversation, which no terminal shows again.
        shown = {key: value for key, value in data.items() if key != "messages"}
        number = self.saved.calls.of(call_id) if call_id else None
        sent = {"event": event, "data": shown, "number": number}
        self._keep(sent)
        for peer in self.peers:
            peer.notify("event", sent)

    def _keep(self, sent: dict[str, Any]) -> None:
        """Keep an event for terminals that join later; short pieces of a text as one."""
        if self._recent and sent["event"] == CONTENT_BLOCK_DELTA:
            last, data = self._recent[-1]["data"], sent["data"]
            before, text = last.get("delta"), data.get("delta")
            is_text = isinstance(before, str) and isinstance(text, str) and len(before) < _CHUNK
            if is_text and _without_text(last) == _without_text(data):
                self._recent[-1] = {**sent, "data": {**data, "delta": before + text}}
                return
        self._recent.append(sent)


def _without_text(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("delta", "timestamp")}


class SocketOutput(Output):
    """Writes to a terminal without ever waiting for it, in the thread of the event loop.

    Attributes:
        sent: Set while nothing is left to send.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.fileno())
        self.sent = asyncio.Event()
        self.sent.set()
        self._connection = connection
        self._unread = bytearray()
        self._loop = asyncio.get_running_loop()

    def write_bytes(self, data: bytes) -> bool:
        if self.failure is None and len(self._unread) > _MAX_UNREAD:
            self._fail(TimeoutError("the terminal reads too slowly"))
        if self.failure is None:
            self._unread += data
            if self.sent.is_set():
                self._send()
        return self.failure is None

    def _send(self) -> None:
        self.sent.clear()
        try:
            while self._unread:
                sent = self._connection.send(self._unread[:_CHUNK], socket.MSG_DONTWAIT)
                del self._unread[:sent]
        except BlockingIOError:
            self._loop.add_writer(self.fd, self._send)
        except OSError as error:
            self._fail(error)
        else:
            self._loop.remove_writer(self.fd)
            self.sent.set()

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self.close()

    def close(self) -> None:
        """Disconnect the terminal, which ends `Peer.serve` and frees its place."""
        self._loop.remove_writer(self.fd)
        self.sent.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Place:
    """The place of the terminal that types; see `amplifier_app.runtime.approvals.Attendant`."""

    def __init__(self, session: OpenSession, watched: _Watched) -> None:
        self._session = session
        self._watched = watched
        self._writer: Peer | None = None
        self._is_over = False
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._outputs: dict[Peer, SocketOutput] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        """Serve connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setblocking(True)
            task = asyncio.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Take nothing more, and return what was not used."""
        self._is_over = True
        unused = self._session.steering.take_back()
        for text in unused:
            to_stderr(f"warning: not used: {text}")
        if self._writer is not None and unused:
            self._writer.notify("unused", {"texts": unused})
        for peer in self._watched.peers:
            peer.notify("end", {"size": self._watched.saved.size})
        outputs = list(self._outputs.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                for output in outputs:
                    await output.sent.wait()
        for output in outputs:
            output.close()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, connection: socket.socket) -> None:
        def handle(method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
            return self._handle(peer, method, params)

        output = SocketOutput(connection)
        peer = Peer(output.fd, output, handle, closed="the terminal has left")
        self._outputs[peer] = output
        if self._is_over:  # Others have time to read the rest, and no one waits for this one.
            output.close()
        try:
            await peer.serve()
        finally:
            await peer.cancel_all()  # It does not get a place that it waits for.
            del self._outputs[peer]
            self._watched.peers.discard(peer)
            if self._writer is peer:
                self._writer = None
            output.close()
            connection.close()

    def _handle(
        self, peer: Peer, method: str, params: dict[str, Any]
    ) -> Awaitable[dict[str, Any]] | dict[str, Any]:
        if self._is_over:
            raise RpcError(INVALID_REQUEST, "the run has ended")
        if method == "watch":
            self._watched.add(peer)
        elif method == "attach":
            return self._attach(peer)
        elif method != "steer":
            raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")
        elif self._writer is not peer:
            raise RpcError(INVALID_REQUEST, "another terminal types in this session")
        elif not self._session.steering.send(str(params.get("text"))):
            raise RpcError(INVALID_REQUEST, "the orchestrator of this session takes no messages")
        return {}

    async def _attach(self, peer: Peer) -> dict[str, Any]:
        while (writer := self._writer) not in (None, peer):
            try:
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await writer.request("ping", {})
            # Its process is stopped, it does not read, or has left.
            except (TimeoutError, RpcError):
                if self._writer is writer:
                    self._writer = None
                    self._outputs[writer].close()  # Fails what it was asked.
            else:
                raise RpcError(INVALID_REQUEST, "another terminal types in this session")
        self._writer = peer
        self._change_waiting(0)
        return {}

    async def _request(self, method: str, params: dict[str, Any], timeout: float | None) -> Any:
        """Return the terminal's answer; None if there is none, it leaves, or it takes too long."""
        self._change_waiting(1)
        try:
            await self._one_at_a_time.acquire()
        finally:
            self._change_waiting(-1)
        try:
            if self._writer is None:
                return None
            async with asyncio.timeout(timeout):
                return await self._writer.request(method, params)
        except (RpcError, TimeoutError):
            return None
        finally:
            self._one_at_a_time.release()

    def _change_waiting(self, by: int) -> None:
        self._waiting += by
        if self._writer is not None:
            self._writer.notify("waiting", {"count": self._waiting})

    async def ask(self, prompt: str, options: list[str], timeout: float | None) -> str | None:
        answer = await self._request("ask", {"prompt": prompt, "options": options}, timeout)
        return answer if answer in options else None

    async def ask_about_tool(
        self, request: ToolApproval, agent: str, timeout: float | None
    ) -> ToolApprovalAnswer | None:
        asked = {"request": request._asdict(), "agent": agent}
        return _read_answer(await self._request("ask_about_tool", asked, timeout))


def _read_answer(value: Any) -> ToolApprovalAnswer | None:
    """The answer of a terminal, which may be of another version; None if it is none."""
    match value:
        case {
            "option": str(option),
            "comment": str() | None as comment,
            "range": int() | None as range_,
            "input": dict() | None as changed,
        }:
            return ToolApprovalAnswer(option, comment, "user", range_, changed)
        case _:
            return None
