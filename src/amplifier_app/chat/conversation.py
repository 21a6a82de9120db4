"""The chat loop: read a prompt, run the turn, repeat until the user leaves."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from prompt_toolkit.history import History, InMemoryHistory

from amplifier_app.base.errors import AppError, SessionError, Terminated
from amplifier_app.base.outcome import OK, Ending, Outcome, outcome_of
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import Output
from amplifier_app.chat.editor import LineEditor, project_history
from amplifier_app.chat.keyboard import Keyboard
from amplifier_app.chat.slash.contributed import contributed_commands
from amplifier_app.chat.slash.registry import (
    Leave,
    SlashCommand,
    all_commands,
    command_in,
    find,
    run_command,
)
from amplifier_app.runtime import describe
from amplifier_app.runtime.observer import NOTHING_TYPED, Renderer, Typed, Waiting
from amplifier_app.runtime.turn_outcome import outcome_of_turn

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


async def chat(session: OpenSession, renderer: Renderer, stdout: Output, *, plain: bool) -> Outcome:
    """Run the chat until the user leaves. A failed turn is reported and the chat continues.

    Raises:
        Terminated: SIGTERM or SIGHUP arrived.
        SessionError: The session can no longer be saved.
    """
    commands = all_commands()
    commands |= await contributed_commands(session.session.coordinator, commands, renderer)
    editor = LineEditor(
        stdout.fd,
        history=_history(renderer),
        commands=[(one.name, one.summary) for one in commands.values()],
        status=lambda: status_line(session),
        plain=plain,
    )
    conversation = _Conversation(session, renderer, editor, commands)
    renderer.notice("/help for commands, Ctrl-D to leave", "info", "chat")
    try:
        while stdout.failure is None:
            try:
                text = await conversation.next()
            except EOFError:
                break
            if command_in(text):
                await conversation.command(text)
            elif text.strip():
                await conversation.turn(text)
                stdout.write("\n")
    except Leave:
        pass
    finally:
        if session.is_saved:
            stdout.write(f"Resume with: amplifier run --resume {session.id}\n")
    return OK


def _history(renderer: Renderer) -> History:
    try:
        return project_history(os.getcwd())
    except SessionError as error:
        renderer.notice(f"prompt history is unavailable: {error.message}", "warning", "chat")
        return InMemoryHistory()


class _Conversation:
    """User input, both at the prompt and while a turn runs."""

    def __init__(
        self,
        session: OpenSession,
        renderer: Renderer,
        editor: LineEditor,
        commands: dict[str, SlashCommand],
    ) -> None:
        self.session = session
        self.renderer = renderer
        self.commands = commands
        self._editor = editor
        self._upcoming: list[str] = []  # to run after the turn, in order
        self._draft = ""  # typed but not sent
        self._keyboard: Keyboard | None = None
        self._running: set[asyncio.Task[None]] = set()  # commands during the turn
        # After the hooks that may change the text.
        hooks = session.session.coordinator.hooks
        hooks.register("steer:injected", lambda *_: self._show(), 1_000_000, name="app-chat")

    async def next(self) -> str:
        """Return the next input: one held until the end of the turn, or else a new line.

        Raises:
            EOFError: Ctrl-D on an empty line.
        """
        if self._upcoming:
            text = self._upcoming.pop(0)
            self.renderer.message_sent(text)
            return text
        draft, self._draft = self._draft, ""
        return await self._editor.read(draft)

    def send(self, prompt: str) -> None:
        """Send a prompt as soon as no turn runs."""
        self._upcoming.append(prompt)

    async def command(self, text: str) -> None:
        """Run a slash command and show what it returns.

        Raises:
            Leave: The command ends the chat.
        """
        try:
            reply = await run_command(text, self)
        except SessionError:
            raise
        except AppError as error:
            _show_outcome(outcome_of(error), self.renderer)
        else:
            if reply is not None:
                self.renderer.reply(reply)

    async def turn(self, prompt: str) -> None:
        """Send a prompt; lines typed while it runs go to the same turn."""
        succeeded = False
        keyboard = Keyboard(
            0,
            take=self._take,
            changed=self._show,
            ahead=self._editor.ahead,
            line=self._draft,
        )
        self._keyboard, self.renderer.while_paused = keyboard, keyboard.away
        try:
            with keyboard:
                succeeded = await self._run(prompt)
        finally:
            self._keyboard, self.renderer.while_paused = None, nullcontext
            self._draft = keyboard.line
            self.renderer.typed(NOTHING_TYPED)
        self._plan_next(succeeded)

    async def _run(self, prompt: str) -> bool:
        """Run a turn; return whether it succeeded."""
        with Interrupts(self.session.stop) as interrupts:
            try:
                await self.session.run(prompt)
            except SessionError:
                raise
            # Providers and modules may raise anything; the chat continues.
            except Exception as error:
                _show_outcome(outcome_of(error), self.renderer)
                return False
        if interrupts.terminated:
            raise Terminated
        _show_ending(self.session, self.renderer)
        return self.session.turn.status == "success"

    def _take(self, text: str) -> None:
        """Take a line typed during the turn: steer the turn, or run it afterwards."""
        self._editor.remember(text)
        steering = self.session.steering
        command = find(command_in(text) or "", self.commands)
        if command is not None and command.during_turn:
            task = asyncio.create_task(self.command(text))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif self._upcoming or command_in(text) or not steering.send(text):
            self._upcoming.append(text)
        elif text not in steering.waiting():
            # The orchestrator took the message but does not list what is queued.
            self.renderer.message_sent(text)
        self._show()

    def _show(self) -> None:
        if self._keyboard is not None:
            queued = [
                Waiting("queued for the next step", text)
                for text in self.session.steering.waiting()
            ]
            later = [Waiting("will run when it finishes", text) for text in self._upcoming]
            line, cursor = self._keyboard.line, self._keyboard.cursor
            self.renderer.typed(Typed(line, cursor, (*queued, *later)))

    def _plan_next(self, succeeded: bool) -> None:
        """Run unused messages next; after a failed or stopped turn, return them to the input line."""
        waiting = [*self.session.steering.take_back(), *self._upcoming]
        if not succeeded:
            texts = [text for text in waiting if not command_in(text)]
            self._draft = "\n".join([*texts, *([self._draft] if self._draft else [])])
            waiting = [text for text in waiting if command_in(text)]
        self._upcoming = waiting


def _show_outcome(outcome: Outcome, renderer: Renderer) -> None:
    hint = f"\n  {outcome.hint}" if outcome.hint else ""
    renderer.notice(f"{outcome.message}{hint}", "error", "chat")


def _show_ending(session: OpenSession, renderer: Renderer) -> None:
    turn = session.turn
    if turn.status == "cancelled":
        renderer.notice("stopped", "warning", "chat")
        return
    # The hint on resuming helps only at a limit, which a new run can raise.
    limited = turn.status == "incomplete" and session.is_saved
    outcome = outcome_of_turn(turn, None, session.id if limited else None)
    if outcome.ending is not Ending.OK:
        hint = f"\n  {outcome.hint}" if outcome.hint else ""
        renderer.notice(f"{outcome.message}{hint}", "warning", "chat")


def status_line(session: OpenSession) -> str:
    """Return profile, model, tokens and cost for the line below the prompt."""
    facts, usage = session.facts, session.usage
    parts = [facts.profile, f"{facts.provider}/{facts.model}" if facts.model else facts.provider]
    total = usage.tokens.get("total_tokens")
    if total:
        parts.append(f"{describe.tokens(total)} tokens")
    if usage.cost_usd is not None and usage.calls:
        parts.append(describe.cost(usage.cost_usd))
    return " " + " · ".join(one_line(part, 60) for part in parts)
