"""Slash commands of modules: in the channel `chat.commands`, for their modes, and those they read from files."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.errors import ModuleError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.command_files import file_commands
from amplifier_app.chat.slash.markdown_commands import markdown_commands
from amplifier_app.chat.slash.mode import mode_commands
from amplifier_app.chat.slash.registry import COMMAND_NAME, Chat, Reply, SlashCommand
from amplifier_app.runtime.observers.observer import Renderer

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

CHANNEL = "chat.commands"


class _Invalid(Exception):
    """A contribution that is not a command."""


async def contributed_commands(
    session: OpenSession, existing: Mapping[str, SlashCommand], renderer: Renderer
) -> dict[str, SlashCommand]:
    """Return the commands of the session's modules by name; report the invalid ones.

    Args:
        session: The session.
        existing: The commands of the app, which modules cannot replace.
        renderer: Shows warnings.
    """
    coordinator = session.session.coordinator
    found: dict[str, SlashCommand] = {}
    taken = {name for command in existing.values() for name in (command.name, *command.aliases)}
    for entry in list(coordinator.channels.get(CHANNEL, ())):
        module = one_line(str(entry["name"]), 60)
        try:
            value = entry["callback"]()
            if inspect.isawaitable(value):
                value = await value
            for command in _commands_in(value, module):
                if command.name in taken or command.name in found:
                    raise _Invalid(f"{command.name} already exists")
                found[command.name] = command
        except _Invalid as error:
            renderer.notice(f"{module}: invalid chat command: {error}", "warning", "chat")
        # A module may raise anything; the chat works without its commands.
        except Exception as error:
            text = one_line(str(error), 200) or type(error).__name__
            renderer.notice(f"{module}: cannot list its chat commands: {text}", "warning", "chat")
    for command in mode_commands(session, renderer):
        # `/mode` switches to a mode with the name of another command.
        if command.name not in taken:
            found.setdefault(command.name, command)
    found |= file_commands(session, {*taken, *found}, renderer)
    # A module may have read the same files.
    own = markdown_commands(session, taken, renderer)
    return own | found


def _commands_in(value: Any, module: str) -> Iterator[SlashCommand]:
    if isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _commands_in(item, module)
    elif isinstance(value, Mapping):
        yield _command(cast("Mapping[str, Any]", value), module)
    elif value is not None:
        raise _Invalid(f"expected a mapping, got {type(value).__name__}")


def _command(value: Mapping[str, Any], module: str) -> SlashCommand:
    name, summary, handler = (value.get(key) for key in ("name", "summary", "handler"))
    if not isinstance(name, str) or not COMMAND_NAME.fullmatch(name.removeprefix("/")):
        raise _Invalid(f"name must be lower-case letters, digits, '-' and '_', got {name!r:.60}")
    name = f"/{name.removeprefix('/')}"
    if not isinstance(summary, str) or not callable(handler):
        raise _Invalid(f"{name} needs 'summary' (text) and 'handler' (function)")

    async def run(chat: Chat, argument: str) -> Reply:
        try:
            answer = handler(argument)
            if inspect.isawaitable(answer):
                answer = await answer
        # A module may raise anything; the chat continues.
        except Exception as error:
            text = one_line(str(error), 400) or type(error).__name__
            raise ModuleError(f"{name} of {module} failed: {text}") from error
        return answer if answer is None else str(answer)

    usage = one_line(str(value.get("usage") or ""), 40)
    during_turn = value.get("during_turn") is True
    return SlashCommand(name, one_line(summary), run, usage, during_turn, module=module)
