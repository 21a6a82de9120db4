"""A terminal that watches a detached run and may type in it; see `amplifier_app.commands.run.attended`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from amplifier_app.base.json_rpc import NO_SUCH_METHOD, Peer, RpcError
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import Output
from amplifier_app.chat.approval_card import ask_about_tool
from amplifier_app.chat.ask import Stopped, ask_on_terminal
from amplifier_app.chat.slash.registry import command_in
from amplifier_app.chat.terminal import PlainTerminal, Sent, State
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.runtime.turns.turn import NO_TURN
from amplifier_app.sessions.background import socket_address
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer
from amplifier_core.events import ORCHESTRATOR_COMPLETE, PROMPT_SUBMIT

_STDOUT = 1

Show = Callable[[int], None]
"""Is given the size of the transcript in bytes."""


async def watch(folder: Path, begin: Show, end: Show, *, types: bool) -> bool | None:
    """Show a detached run as it happens until it ends, and type in it unless another terminal does.

    Args:
        folder: The folder of the session.
        begin: Shows what was saved before.
        end: Takes what is saved at the end as shown.
        types: Whether this process has the keyboard.

    Returns:
        True if it was shown to its end, False if the connection was lost before; None if the run cannot be
        watched: it has just ended, or was killed.

    Raises:
        KeyboardInterrupt: The user leaves.
    """
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        try:
            with socket_address(folder) as address:
                connection.connect(address)
        except OSError:
            return None
        async with PlainTerminal(Output(_STDOUT)) as terminal:
            watcher = _Watcher(terminal, connection.fileno(), begin, end)
            serving = asyncio.create_task(watcher.peer.serve())
            try:
                await watcher.peer.request("watch", {})
                if types:
                    await watcher.attach()
                leaving = asyncio.create_task(watcher.left.wait())
                await asyncio.wait([serving, leaving], return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
            except RpcError:
                return False if watcher.has_begun else None
            finally:
                terminal.listener = None
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                # Ctrl-C cancels it, too.
                await asyncio.wait([serving])
                await watcher.peer.cancel_all()
                watcher.end()
    if watcher.left.is_set():
        raise KeyboardInterrupt
    return watcher.is_complete


class _Watcher:
    """Shows what happens, sends what is typed, and asks what the run asks; see `amplifier_app.chat.terminal.Listener`."""

    def __init__(self, terminal: PlainTerminal, descriptor: int, begin: Show, end: Show) -> None:
        self.peer = Peer(descriptor, Output(descriptor), self._handle, closed="the run has ended")
        self.left = asyncio.Event()
        self.has_begun = self.is_complete = False
        self._terminal = terminal
        self._begin, self._end = begin, end
        self._renderer = PlainRenderer(Output(_STDOUT))
        self._renderer.while_paused = terminal.suspended
        self._numbers: dict[str, int | None] = {}
        self._renderer.call_number = self._numbers.get
        self._handlers = self._renderer.handlers()
        self._waiting = 0  # questions
        self._sending: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Show the rest of the last line."""
        self._renderer.turn_ended(NO_TURN)
        self._renderer.close()

    async def attach(self) -> None:
        """Take the place of the terminal that types, if it is free."""
        try:
            await self.peer.request("attach", {})
        except RpcError as error:
            self._notify(f"watching only: {error.message}")
            return
        self._notify("a line you type is a message for the next step; Ctrl-C leaves")
        self._terminal.listener = self
        self._terminal.set_state(State.BUSY)

    def _notify(self, message: str) -> None:
        """Show a line of this program between the lines of the run."""
        self._renderer.notice(message, "info", "")

    def _show(self, event: str, data: dict[str, Any], number: int | None) -> None:
        if number is not None:
            self._numbers[data["tool_call_id"]] = number
        if event == PROMPT_SUBMIT:
            self._renderer.message_sent(str(data.get("prompt") or ""))
            self._renderer.turn_started()
        if event in self._handlers:
            self._handlers[event](event, data)
        if event == ORCHESTRATOR_COMPLETE:
            # Only the run knows what the prompt has come to.
            self._renderer.turn_ended(NO_TURN)

    def _handle(self, method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
        if method == "event":
            return self._show(**params)
        if method == "end":
            self.is_complete = True
            return self._end(params["size"])
        if method == "begin":
            self.has_begun = True
            return self._begin(params["size"])
        if method == "ask":
            return self._ask(params["prompt"], params["options"])
        if method == "ask_about_tool":
            return self._ask_about_tool(ToolApproval(**params["request"]), params["agent"])
        if method == "ping":
            return {}
        if method == "waiting":
            self._waiting = params["count"]
            return None
        if method == "unused":
            for text in params["texts"]:
                self._notify(f"not used by the run: {text}")
            return None
        raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncGenerator[None]:
        """Have the keyboard for a question."""
        await self._terminal.typing_paused()
        try:
            with self._renderer.paused():
                yield
        except Stopped:
            self.left.set()
            raise asyncio.CancelledError from None

    async def _ask(self, prompt: str, options: list[str]) -> str:
        async with self._asking():
            answer = await ask_on_terminal(_STDOUT, prompt, options, None)
        return answer or next(
            (option for option in options if option.lower().startswith("deny")), "Deny"
        )

    async def _ask_about_tool(self, request: ToolApproval, agent: str) -> dict[str, Any]:
        async with self._asking():
            answer = await ask_about_tool(
                _STDOUT, request, agent, None, count_waiting=lambda: self._waiting
            )
        return (answer or ToolApprovalAnswer("Deny"))._asdict()

    async def _send(self, text: str) -> None:
        try:
            await self.peer.request("steer", {"text": text})
        except RpcError as error:
            self._notify(f"not sent: {one_line(text)}: {error.message}")
        else:
            self._notify("queued for the next step")

    # Listener

    def on_input(self, sent: Sent) -> None:
        self._renderer.line_entered()
        if not sent.text.strip():
            return
        if command := command_in(sent.text):
            self._notify(f"{command} is a chat command; here a line is a message for the model")
            return
        task = asyncio.create_task(self._send(sent.text))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def on_leave(self) -> None:
        self.left.set()

    on_interrupt = on_background = on_leave

    def cycle_mode(self) -> None:
        """Do nothing: the run keeps its mode."""
