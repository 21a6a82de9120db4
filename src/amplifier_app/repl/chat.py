"""The chat: reads prompts, runs turns, until the user leaves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prompt_toolkit.history import History, InMemoryHistory

from amplifier_app.errors import SessionError, Terminated
from amplifier_app.outcome import OK, Outcome, outcome_of
from amplifier_app.render import describe
from amplifier_app.render.base import Renderer
from amplifier_app.render.sanitize import for_terminal, one_line
from amplifier_app.repl.commands import COMMANDS, Leave, command_in, run_command
from amplifier_app.repl.editor import LineEditor, no_echo, project_history
from amplifier_app.signals import Interrupts
from amplifier_app.stdio import Output
from amplifier_app.turn_outcome import outcome_of_turn

if TYPE_CHECKING:
    from amplifier_app.runtime import OpenSession


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
    renderer.notice("/help for commands, Ctrl-D to leave", "info", "chat")
    try:
        while stdout.failure is None:
            try:
                text = await editor.read()
            except EOFError:
                break
            if command_in(text):
                stdout.write(for_terminal(await run_command(text, session)) + "\n")
            elif text.strip():
                await _turn(session, renderer, text)
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


async def _turn(session: OpenSession, renderer: Renderer, prompt: str) -> None:
    with no_echo(), Interrupts(session.stop) as interrupts:
        try:
            await session.run(prompt)
        except SessionError:
            raise
        # The boundary of a turn: providers and modules may raise anything, the chat goes on.
        except Exception as error:
            _tell(outcome_of(error), renderer)
            return
    if interrupts.terminated:
        raise Terminated
    _tell_ending(session, renderer)


def _tell(outcome: Outcome, renderer: Renderer) -> None:
    hint = f"\n  {outcome.hint}" if outcome.hint else ""
    renderer.notice(f"{outcome.message}{hint}", "error", "chat")


def _tell_ending(session: OpenSession, renderer: Renderer) -> None:
    turn = session.turn
    if turn.status == "cancelled":
        renderer.notice("stopped", "warning", "chat")
    elif turn.status == "incomplete":
        outcome = outcome_of_turn(turn, None, session.id if session.is_saved else None)
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
