"""The chat: reads prompts, runs turns, until the user leaves."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from prompt_toolkit.history import History, InMemoryHistory

from amplifier_app.base.errors import SessionError, Terminated
from amplifier_app.base.outcome import OK, Ending, Outcome, outcome_of
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import Output
from amplifier_app.chat.editor import LineEditor, project_history
from amplifier_app.chat.keyboard import Keyboard
from amplifier_app.chat.slash_commands import COMMANDS, Leave, command_in, run_command
from amplifier_app.runtime import describe
from amplifier_app.runtime.observer import NOTHING_TYPED, Renderer, Typed, Waiting
from amplifier_app.runtime.turn_outcome import outcome_of_turn

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


async def chat(session: OpenSession, renderer: Renderer, stdout: Output, *, plain: bool) -> Outcome:
    """Talk until the user leaves. A turn that fails is told and the chat goes on.

    Raises:
        Terminated: SIGTERM or SIGHUP arrived.
        SessionError: The conversation can no longer be saved.
    """
    editor = LineEditor(
        stdout.fd,
        history=_history(renderer),
        commands=COMMANDS,
        status=lambda: status_line(session),
        plain=plain,
    )
    conversation = _Conversation(session, renderer, editor)
    renderer.notice("/help for commands, Ctrl-D to leave", "info", "chat")
    try:
        while stdout.failure is None:
            try:
                text = await conversation.next()
            except EOFError:
                break
            if command_in(text):
                stdout.write(for_terminal(await run_command(text, session)) + "\n")
            elif text.strip():
                await conversation.turn(text)
                stdout.write("\n")
    except Leave:
        pass
    finally:
        if session.is_saved:
            stdout.write(f"To go on: amplifier run --resume {session.id}\n")
    return OK


def _history(renderer: Renderer) -> History:
    try:
        return project_history(os.getcwd())
    except SessionError as error:
        renderer.notice(f"inputs are not remembered: {error.message}", "warning", "chat")
        return InMemoryHistory()


class _Conversation:
    """What the user says: at the prompt, and while a turn runs."""

    def __init__(self, session: OpenSession, renderer: Renderer, editor: LineEditor) -> None:
        self._session = session
        self._renderer = renderer
        self._editor = editor
        self._upcoming: list[str] = []  # to be done after the turn, in order
        self._draft = ""  # what is typed and not sent
        self._keyboard: Keyboard | None = None
        # Behind the hooks that may change the text.
        hooks = session.session.coordinator.hooks
        hooks.register("steer:injected", lambda *_: self._show(), 1_000_000, name="app-chat")

    async def next(self) -> str:
        """What is to be done next: what waited for the end of the turn, else what is typed now.

        Raises:
            EOFError: Ctrl-D on an empty line.
        """
        if self._upcoming:
            text = self._upcoming.pop(0)
            self._renderer.said(text)
            return text
        draft, self._draft = self._draft, ""
        return await self._editor.read(draft)

    async def turn(self, prompt: str) -> None:
        """Send a prompt, and to its turn what is typed while it runs."""
        ended_well = False
        keyboard = Keyboard(
            0,
            take=self._take,
            changed=self._show,
            ahead=self._editor.ahead,
            line=self._draft,
        )
        self._keyboard, self._renderer.while_paused = keyboard, keyboard.away
        try:
            with keyboard:
                ended_well = await self._run(prompt)
        finally:
            self._keyboard, self._renderer.while_paused = None, nullcontext
            self._draft = keyboard.line
            self._renderer.typed(NOTHING_TYPED)
        self._sort_out(ended_well)

    async def _run(self, prompt: str) -> bool:
        """Run a turn; whether it came to its end."""
        with Interrupts(self._session.stop) as interrupts:
            try:
                await self._session.run(prompt)
            except SessionError:
                raise
            # The boundary of a turn: providers and modules may raise anything, the chat goes on.
            except Exception as error:
                _tell(outcome_of(error), self._renderer)
                return False
        if interrupts.terminated:
            raise Terminated
        _tell_ending(self._session, self._renderer)
        return self._session.turn.status == "success"

    def _take(self, text: str) -> None:
        """A line typed during the turn: a message for it, or something to do after it."""
        self._editor.remember(text)
        steering = self._session.steering
        if self._upcoming or command_in(text) or not steering.say(text):
            self._upcoming.append(text)
        elif text not in steering.waiting():
            # An orchestrator that does not tell what waits: it has it, that is all there is to say.
            self._renderer.said(text)
        self._show()

    def _show(self) -> None:
        if self._keyboard is not None:
            queued = [Waiting("queued", text) for text in self._session.steering.waiting()]
            later = [Waiting("after this turn", text) for text in self._upcoming]
            line, cursor = self._keyboard.line, self._keyboard.cursor
            self._renderer.typed(Typed(line, cursor, (*queued, *later)))

    def _sort_out(self, ended_well: bool) -> None:
        """What the turn did not use comes next; after one that was cut short the user decides."""
        waiting = [*self._session.steering.take_back(), *self._upcoming]
        if not ended_well:
            texts = [text for text in waiting if not command_in(text)]
            self._draft = "\n".join([*texts, *([self._draft] if self._draft else [])])
            waiting = [text for text in waiting if command_in(text)]
        self._upcoming = waiting


def _tell(outcome: Outcome, renderer: Renderer) -> None:
    hint = f"\n  {outcome.hint}" if outcome.hint else ""
    renderer.notice(f"{outcome.message}{hint}", "error", "chat")


def _tell_ending(session: OpenSession, renderer: Renderer) -> None:
    turn = session.turn
    if turn.status == "cancelled":
        renderer.notice("stopped", "warning", "chat")
        return
    # How to resume says something only about a limit, which a new run raises.
    limited = turn.status == "incomplete" and session.is_saved
    outcome = outcome_of_turn(turn, None, session.id if limited else None)
    if outcome.ending is not Ending.OK:
        hint = f"\n  {outcome.hint}" if outcome.hint else ""
        renderer.notice(f"{outcome.message}{hint}", "warning", "chat")


def status_line(session: OpenSession) -> str:
    """Profile, model, tokens and cost, for the line below the prompt."""
    facts, usage = session.facts, session.usage
    parts = [facts.profile, f"{facts.provider}/{facts.model}" if facts.model else facts.provider]
    total = usage.tokens.get("total_tokens")
    if total:
        parts.append(f"{describe.tokens(total)} tokens")
    if usage.cost_usd is not None and usage.calls:
        parts.append(describe.cost(usage.cost_usd))
    return " " + " · ".join(one_line(part, 60) for part in parts)
