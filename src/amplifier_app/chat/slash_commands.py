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
    """Return the slash command at the start of `text`, known or not; None if it is a prompt.

    A path (`/usr/bin/env is missing`) is a prompt, and so is text with a leading space.
    """
    match = _COMMAND.match(text)
    return match[0] if match else None


def is_command(name: str) -> bool:
    """Whether the chat has this slash command."""
    return name in _HANDLERS or name in _WITH_ARGUMENT


async def run_command(text: str, session: OpenSession) -> str:
    """Run the slash command in `text` and return its output.

    Raises:
        Leave: The command ends the chat.
    """
    name = command_in(text)
    if name in _WITH_ARGUMENT:
        return await _WITH_ARGUMENT[name](session, text[len(name) :].strip())
    if name is None or name not in _HANDLERS:
        return f"unknown command: {name}. Use /help for a list, or start with a space to send it as a prompt."
    return await _HANDLERS[name](session)


async def _help(session: OpenSession) -> str:
    lines = [f"{name:<9} {summary}" for name, summary in COMMANDS]
    keys = [
        "",
        "Enter sends the prompt; Alt-Enter or Ctrl-J starts a new line.",
        "Anything you type while it works is sent to the model at its next step.",
        "Slash commands typed then run when the turn ends.",
        "Ctrl-C stops the current turn; press it again to stop immediately.",
        "At the prompt, Ctrl-C clears the line.",
        "Ctrl-D leaves the chat.",
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
        return "No usage yet."
    lines = [f"{name.replace('_', ' '):<20} {count:>12,}" for name, count in usage.tokens.items()]
    price = (
        describe.cost(usage.cost_usd)
        if usage.cost_usd is not None
        else "no price known for this model"
    )
    return "\n".join([*lines, f"{'cost':<20} {price:>12}"])


async def _clear(session: OpenSession) -> str:
    await session.clear()
    return "Context cleared. The earlier conversation stays in the session file."


async def _quit(session: OpenSession) -> str:
    raise Leave


async def _think(session: OpenSession, argument: str) -> str:
    wanted = {"": None, "on": True, "off": False}
    if argument not in wanted:
        return f"/think expects 'on' or 'off', got {one_line(argument, 40)!r}."
    shown = session.renderer.visibility.show_thinking(wanted[argument])
    return "Thinking is shown." if shown else "Thinking is hidden."


_TABLE: tuple[tuple[str, str, Handler], ...] = (
    ("/help", "Commands and keys", _help),
    ("/status", "Session, profile, model and directory", _status),
    ("/tools", "Tools available to the model", _tools),
    ("/clear", "Clear the context", _clear),
    ("/cost", "Tokens and cost so far", _cost),
    ("/quit", "Leave the chat", _quit),
)
COMMANDS = (
    *((name, summary) for name, summary, _ in _TABLE[:-1]),
    ("/think", "[on|off]  Show or hide the model's thinking"),
    ("/undo", undo.SUMMARY),
    *((name, summary) for name, summary, _ in _TABLE[-1:]),
)
_WITH_ARGUMENT = {"/think": _think, "/undo": undo.undo}
_HANDLERS = {name: handler for name, _, handler in _TABLE} | {"/exit": _quit}
