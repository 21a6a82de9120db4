"""The chat's slash commands, offered in an editor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import UsageError
from amplifier_app.chat.slash.contributed import contributed_commands
from amplifier_app.chat.slash.registry import (
    Reopen,
    SlashCommand,
    all_commands,
    command_in,
    find,
    run_command,
)
from amplifier_app.render.ansi import rich_lines
from amplifier_serve.acp.updates import Updates

if TYPE_CHECKING:
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_app.runtime.session import OpenSession

_OFFERED = (
    *("/status", "/cost", "/context", "/compact", "/diff", "/undo", "/plan", "/tools", "/agents"),
    *(
        "/modules",
        "/init",
        "/review",
        "/why",
        "/history",
        "/show",
        "/rename",
        "/approve",
        "/export",
    ),
)
"""Those of the app that need no terminal, and for which an editor has nothing of its own."""
_COLUMNS = 100


class Commands:
    """Lists and runs slash commands.

    Args:
        updates: Shows what they print.
    """

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._chat: _Chat | None = None

    async def announce(self, session: OpenSession) -> None:
        """Send the commands of a session."""
        own = all_commands()
        commands = {name: own[name] for name in _OFFERED if name in own}
        commands |= await contributed_commands(session, own, self._updates)
        self._chat = _Chat(session, self._updates, commands)
        listed = [
            {
                "name": name.removeprefix("/"),
                "description": command.summary,
                **({"input": {"hint": command.usage}} if command.usage else {}),
            }
            for name, command in commands.items()
        ]
        self._updates.send("available_commands_update", {"availableCommands": listed})

    async def run(self, text: str, session: OpenSession) -> bool:
        """Run the command in a prompt; False if it has none.

        Raises:
            AppError: The command cannot run.
        """
        chat = self._chat
        if chat is None or find(command_in(text) or "", chat.commands) is None:
            return False
        chat.session = session
        try:
            reply = await run_command(text, chat)
        except Reopen as reopen:
            raise UsageError("this command is for the terminal only") from reopen
        if reply is not None:
            self._updates.say(_as_text(reply))
        return True

    def take_prompt(self) -> str | None:
        """The prompt that the command sends to the model; None if it sends none."""
        if self._chat is None:
            return None
        prompt, self._chat.prompt = self._chat.prompt, None
        return prompt


class _Chat:
    """The `amplifier_app.chat.slash.registry.Chat` of an editor.

    Attributes:
        prompt: The prompt that a command wants to send.
    """

    is_plain = True
    is_unanswered = False
    last_prompt: str | None = None

    def __init__(
        self, session: OpenSession, renderer: Renderer, commands: Mapping[str, SlashCommand]
    ) -> None:
        self.session = session
        self.renderer = renderer
        self.commands = commands
        self.prompt: str | None = None

    def send(self, prompt: str, *, adds_files: bool = True) -> None:
        self.prompt = prompt

    def page_or_return(self, text: str) -> str:
        return text

    def edit_text(self, text: str) -> str:
        raise UsageError("there is no editor for this here")

    async def pick(self, picker: Any) -> None:
        return None

    def on_background(self) -> None:
        """Do nothing: the editor keeps its prompt."""


def _as_text(reply: Any) -> str:
    """The output of a command as Markdown that keeps its columns."""
    if not isinstance(reply, str):
        drawn = rich_lines(reply, _COLUMNS, styled=False)
        reply = "\n".join(line.rstrip() for line in drawn)
    return f"```\n{reply}\n```" if "\n" in reply else reply
