"""The terminal that types in a detached run; see `amplifier_app.commands.run.attended`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from amplifier_app.base.json_rpc import NO_SUCH_METHOD, Peer, RpcError
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_app.chat.approval_card import ask_about_tool
from amplifier_app.chat.ask import Stopped, ask_on_terminal
from amplifier_app.chat.slash.registry import command_in
from amplifier_app.chat.terminal import PlainTerminal, Sent, State
from amplifier_app.sessions.background import socket_address
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer

_LOOK_SECONDS = 0.3
_STDOUT = 1


async def watch_and_type(folder: Path, show: Callable[[], bool]) -> None:
    """Type in a detached run until it ends, the user leaves, or another terminal types there.

    Args:
        folder: The folder of the session.
        show: Shows what is new of the conversation, and returns whether the session runs.

    Raises:
        KeyboardInterrupt: The user leaves.
    """
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        try:
            with socket_address(folder) as address:
                connection.connect(address)
        except OSError:  # It has just ended, or was killed.
            return
        async with PlainTerminal(Output(_STDOUT)) as terminal:
            writer = _Writer(terminal, connection.fileno())
            serving = asyncio.create_task(writer.peer.serve())
            try:
                await writer.peer.request("attach", {})
                to_stderr(
                    "amplifier: a line you type is a message for the next step; Ctrl-C leaves"
                )
                terminal.listener = writer
                terminal.set_state(State.BUSY)
                while not (writer.has_left or serving.done()):
                    if not writer.is_asking and not show():
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
            except RpcError as error:
                to_stderr(f"amplifier: watching only: {error.message}")
            finally:
                terminal.listener = None
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                await serving
                await writer.peer.cancel_all()
    if writer.has_left:
        raise KeyboardInterrupt


class _Writer:
    """Sends what is typed, and asks what the run asks; see `amplifier_app.chat.terminal.Listener`."""

    def __init__(self, terminal: PlainTerminal, descriptor: int) -> None:
        self.peer = Peer(descriptor, Output(descriptor), self._handle, closed="the run has ended")
        self.has_left = False
        self.is_asking = False
        self._terminal = terminal
        self._sending: set[asyncio.Task[None]] = set()

    def _handle(self, method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
        if method == "ask":
            return self._ask(params["prompt"], params["options"])
        if method == "ask_about_tool":
            return self._ask_about_tool(ToolApproval(**params["request"]), params["agent"])
        if method == "unused":
            for text in params["texts"]:
                to_stderr(f"amplifier: not used by the run: {for_terminal(text)}")
            return None
        raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncGenerator[None]:
        """Have the keyboard for a question."""
        await self._terminal.typing_paused()
        self.is_asking = True
        try:
            with self._terminal.suspended():
                yield
        except Stopped:
            self.has_left = True
            raise asyncio.CancelledError from None
        finally:
            self.is_asking = False

    async def _ask(self, prompt: str, options: list[str]) -> str:
        async with self._asking():
            answer = await ask_on_terminal(_STDOUT, prompt, options, None)
        return answer or next((one for one in options if one.lower().startswith("deny")), "Deny")

    async def _ask_about_tool(self, request: ToolApproval, agent: str) -> dict[str, Any]:
        async with self._asking():
            answer = await ask_about_tool(_STDOUT, request, agent, None)
        return (answer or ToolApprovalAnswer("Deny"))._asdict()

    async def _send(self, text: str) -> None:
        try:
            await self.peer.request("steer", {"text": text})
        except RpcError as error:
            to_stderr(f"amplifier: not sent: {one_line(for_terminal(text))}: {error.message}")
        else:
            to_stderr("amplifier: queued for the next step")

    # Listener

    def on_input(self, sent: Sent) -> None:
        if not sent.text.strip():
            return
        if command := command_in(sent.text):
            to_stderr(
                f"amplifier: {command} is a chat command; here a line is a message for the model"
            )
            return
        task = asyncio.create_task(self._send(sent.text))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def on_interrupt(self) -> None:
        self.has_left = True

    def on_leave(self) -> None:
        self.has_left = True

    def on_background(self) -> None:
        self.has_left = True

    def cycle_mode(self) -> None:
        """Do nothing: the run keeps its mode."""
