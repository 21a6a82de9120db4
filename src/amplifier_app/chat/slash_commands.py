"""The slash commands of the chat."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from amplifier_app.base.sanitize import one_line
from amplifier_app.chat import undo
from amplifier_app.runtime import describe

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_COMMAND = re.compile(r"/[a-z][a-z-]*(?=\s|$)")

Handler = Callable[["OpenSession"], Awaitable[str]]


class Leave(Exception):
    """The user wants to leave the chat."""


def command_in(text: str) -> str | None:
    """The slash command `text` begins with, known or not; None if it is a prompt.

    A path (`/usr/bin/env is missing`) is a prompt; so is anything after a space.
    """
    match = _COMMAND.match(text)
    return match[0] if match else None


def is_command(name: str) -> bool:
    """Whether the chat has this command."""
    return name in _HANDLERS or name in _WITH_ARGUMENT


async def run_command(text: str, session: OpenSession) -> str:
    """Carry out the slash command in `text`; returns what to show.

    Raises:
        Leave: It is the one that ends the chat.
    """
    name = command_in(text)
    if name in _WITH_ARGUMENT:
        return await _WITH_ARGUMENT[name](session, text[len(name) :].strip())
    if name is None or name not in _HANDLERS:
        return f"no such command: {name}. /help lists them; a leading space sends it as a prompt."
    return await _HANDLERS[name](session)


async def _help(session: OpenSession) -> str:
    lines = [f"{name:<9} {summary}" for name, summary in COMMANDS]
    keys = [
        "",
        "Enter sends; Alt-Enter or Ctrl-J starts a new line.",
        "What you type during a turn is told to the model after its step; commands wait for the end.",
        "Ctrl-C stops the turn after its step, pressed again at once; at the prompt it clears.",
        "Ctrl-D leaves.",
    ]
    return "\n".join(lines + keys)


async def _status(session: OpenSession) -> str:
    facts = session.facts
    rows = [
        ("session", f"{session.id}{'' if facts.saved else ' (not saved)'}"),
        ("profile", facts.profile),
        ("provider", facts.provider),
        ("model", facts.model or "the provider's default"),
        ("directory", facts.working_dir),
        ("tools", ", ".join(facts.tools) or "none"),
        ("messages", str(len(await session.context.get_messages()))),
    ]
    return "\n".join(f"{name:<10} {one_line(value, 400)}" for name, value in rows)


async def _tools(session: OpenSession) -> str:
    tools = session.session.coordinator.get("tools")
    lines = [
        f"{one_line(name, 40):<20} {one_line(str(getattr(tool, 'description', '')), 100)}"
        for name, tool in tools.items()
    ]
    return "\n".join(lines) or "no tools"


async def _cost(session: OpenSession) -> str:
    usage = session.usage
    if not usage.calls:
        return "nothing yet"
    lines = [f"{name.replace('_', ' '):<20} {count:>12,}" for name, count in usage.tokens.items()]
    price = describe.cost(usage.cost_usd) if usage.cost_usd is not None else "not known"
    return "\n".join([*lines, f"{'cost':<20} {price:>12}"])


async def _clear(session: OpenSession) -> str:
    await session.clear()
    return "The conversation starts anew; the saved session keeps what was before."


async def _quit(session: OpenSession) -> str:
    raise Leave


async def _think(session: OpenSession, argument: str) -> str:
    wanted = {"": None, "on": True, "off": False}
    if argument not in wanted:
        return f"/think takes 'on' or 'off', not {one_line(argument, 40)!r}."
    shown = session.renderer.visibility.show_thinking(wanted[argument])
    return "Thinking is shown." if shown else "Thinking is hidden."


_TABLE: tuple[tuple[str, str, Handler], ...] = (
    ("/help", "Show this.", _help),
    ("/status", "Session, profile, model, directory.", _status),
    ("/tools", "The tools the model has.", _tools),
    ("/clear", "Forget the conversation.", _clear),
    ("/cost", "Tokens and cost so far.", _cost),
    ("/quit", "Leave; so does Ctrl-D.", _quit),
)
COMMANDS = (
    *((name, summary) for name, summary, _ in _TABLE[:-1]),
    ("/think", "Show the model's thinking, or hide it; 'on' and 'off' say which."),
    ("/undo", undo.SUMMARY),
    *((name, summary) for name, summary, _ in _TABLE[-1:]),
)
_WITH_ARGUMENT = {"/think": _think, "/undo": undo.undo}
_HANDLERS = {name: handler for name, _, handler in _TABLE} | {"/exit": _quit}
