"""`amplifier session join`: a terminal that shows a running session, and may type in a detached one.

See `amplifier_app.commands.run.attended` for the side of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import typer

from amplifier_app.base.json_rpc import NO_SUCH_METHOD, Peer, RpcError
from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.base.stdio import Output, stderr_is_tty, terminal_width, to_stderr
from amplifier_app.chat.approval_card import ask_about_tool
from amplifier_app.chat.ask import Stopped, ask_on_terminal
from amplifier_app.chat.slash.registry import command_in
from amplifier_app.chat.terminal import PlainTerminal, Sent, State
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.conversation import part_lines
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.runtime.export.parts import Part, build_parts
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.runtime.turn_outcome import resume_command
from amplifier_app.runtime.turns.turn import NO_TURN
from amplifier_app.sessions.background import (
    SOCKET,
    is_active,
    is_running,
    read_result,
    restore_outcome,
    socket_address,
    wait_for_end,
)
from amplifier_app.sessions.conversation import Step
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import RESULT_FILE, short_id
from amplifier_app.sessions.transcript import transcript_size
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer
from amplifier_core.events import ORCHESTRATOR_COMPLETE, PROMPT_SUBMIT

_LOOK_SECONDS = 0.1
_LOST_SECONDS = 0.5
"""Seconds until a killed process has surely released its locks."""
_PIPE_WIDTH = 100
_STDOUT = 1


def join(context: typer.Context, session_id: SessionArgument) -> None:
    """Show a session that runs in another process, as it goes on, until it ends.

    \b
      id=$(amplifier run --detach "Fix the tests.")
      amplifier session join $id

    Several can watch a detached run. The first on a terminal also types: a line is a message for the next
    step, and what needs approval is asked there. Ctrl-C or Ctrl-D leaves; the run goes on. Exits with the
    exit code of the run.
    """
    session = SessionStore().find(session_id)
    if stderr_is_tty() and isinstance(title := session.metadata.get("title"), str):
        to_stderr(f'amplifier: joined "{one_line(title, 60)}"')
    view = _View(session)
    while (outcome := _find_outcome(view.folder)) is None:
        # A run that has a socket shows all that follows itself.
        size = transcript_size(view.folder)
        watched = run_loop(_watch(view)) if (view.folder / SOCKET).exists() else None
        if watched is False:
            outcome = _describe_loss(view.folder)
            break
        view.show(size)
        time.sleep(_LOOK_SECONDS)
    else:
        view.show()
    invocation: Invocation = context.obj
    invocation.outcome = outcome


class _View:
    """The conversation of a session as far as it was shown."""

    def __init__(self, session: SessionFolder) -> None:
        self.folder = session.path
        self._session = session
        self._width = terminal_width(1)
        self._shown = 0
        self._seen: tuple[bool, int] | None = None

    def show(self, size: int | None = None) -> None:
        """Show what is new, in the first bytes of the transcript or in all."""
        runs, size = is_running(self.folder), transcript_size(self.folder) if size is None else size
        if (runs, size) == self._seen:
            return
        self._seen = runs, size
        parts = self._parts(size, runs=runs)
        lines = part_lines(parts[self._shown :], self._width or _PIPE_WIDTH)
        if lines:
            text = "\n".join(["", *lines] if self._shown else lines)
            print(for_pipe(text) if self._width is None else text, flush=True)
        self._shown = max(self._shown, len(parts))

    def begin(self, size: int) -> None:
        """Show what is new in the first bytes of the transcript, and a line between that and what follows."""
        self.show(size)
        if self._shown:
            print(flush=True)

    def end(self, size: int) -> None:
        """Take the first bytes of the transcript as shown."""
        self._shown = len(self._parts(size, runs=False))

    def _parts(self, size: int, *, runs: bool) -> list[Part]:
        items = list(self._session.conversation(size))
        last = items[-1] if runs and items else None
        if isinstance(last, Step):
            # Calls that have ended, in order: their lines have the results.
            ended = itertools.takewhile(lambda call: call.result is not None, last.calls)
            items[-1] = last._replace(calls=tuple(ended))
        return list(build_parts(items, Visibility("user")))


def _find_outcome(folder: Path) -> Outcome | None:
    """The outcome of the last run of a session; None while one runs."""
    if is_active(folder):
        return None
    if (result := read_result(folder)) is not None:
        return restore_outcome(result)
    if not (folder / RESULT_FILE).exists():
        return OK if folder.exists() else Outcome(Ending.SESSION, f"{folder} was removed")
    if is_active(folder):  # another one, which has begun meanwhile
        return None
    hint = f"Resume it with: {resume_command(folder.name)}"
    return Outcome(Ending.SESSION, f"the run of session {folder.name} was killed", hint)


def _describe_loss(folder: Path) -> Outcome:
    """The outcome of a run whose connection was lost."""
    wait_for_end(folder, _LOST_SECONDS)
    outcome = _find_outcome(folder)
    if outcome is not None and read_result(folder) is None:
        return outcome  # It was killed.
    command = "join" if outcome is None else "show"
    hint = f"See the rest: amplifier session {command} {short_id(folder.name)}"
    return Outcome(Ending.SESSION, f"the connection to session {folder.name} was lost", hint)


async def _watch(view: _View) -> bool | None:
    """Show a detached run as it happens until it ends, and type in it unless another terminal does.

    Returns:
        True if it was shown to its end, False if the connection was lost before; None if the run cannot be
        watched: it has just ended, or was killed.

    Raises:
        KeyboardInterrupt: The user leaves.
    """
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        try:
            with socket_address(view.folder) as address:
                connection.connect(address)
        except OSError:
            return None
        async with PlainTerminal(Output(_STDOUT)) as terminal:
            watcher = _Watcher(terminal, connection.fileno(), view)
            serving = asyncio.create_task(watcher.peer.serve())
            try:
                await watcher.peer.request("watch", {})
                if _can_type():
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


def _can_type() -> bool:
    """Return True if this process has the keyboard of a terminal and can write to it."""
    try:
        return os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except (OSError, AttributeError):  # a terminal that is gone; a system without process groups
        return False


class _Watcher:
    """Shows what happens, sends what is typed, and asks what the run asks; see `amplifier_app.chat.terminal.Listener`."""

    def __init__(self, terminal: PlainTerminal, descriptor: int, view: _View) -> None:
        self.peer = Peer(descriptor, Output(descriptor), self._handle, closed="the run has ended")
        self.left = asyncio.Event()
        self.has_begun = self.is_complete = False
        self._terminal = terminal
        self._view = view
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
            return self._view.end(params["size"])
        if method == "begin":
            self.has_begun = True
            return self._view.begin(params["size"])
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
