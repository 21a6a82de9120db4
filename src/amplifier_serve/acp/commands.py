"""The chat's slash commands, offered in an editor."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import visible
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
    *("/modules", "/init", "/review", "/why", "/history", "/show", "/rename", "/approve"),
    "/export",
)
"""Those of the app that need no terminal, and for which an editor has nothing of its own."""
_COLUMNS = 100


class Commands:
    """Lists and runs slash commands: the `amplifier_app.chat.slash.registry.Chat` of an editor.

    Args:
        updates: Shows what they print.

    Attributes:
        session: The session that a command is for.
        renderer: Shows it.
        commands: The commands by name; empty before they are announced.
        changed_in_editor: The files that were changed in the editor, of which copies have the saved text.
    """

    is_plain = True
    is_unanswered = False
    last_prompt: str | None = None
    session: OpenSession

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self.renderer: Renderer = updates
        self.commands: dict[str, SlashCommand] = {}
        self.changed_in_editor: Collection[str] = ()
        self._prompt: str | None = None

    async def announce(self, session: OpenSession) -> None:
        """Send the commands of a session."""
        own = all_commands()
        contributed = await contributed_commands(session, own, self._updates)
        self.commands = {name: own[name] for name in _OFFERED if name in own} | contributed
        listed = [
            {
                "name": name.removeprefix("/"),
                "description": command.summary,
                **({"input": {"hint": command.usage}} if command.usage else {}),
            }
            for name, command in self.commands.items()
        ]
        self._updates.send("available_commands_update", {"availableCommands": listed})

    async def run(self, text: str, session: OpenSession) -> bool:
        """Run the command in a prompt; False if it has none.

        Raises:
            AppError: The command cannot run.
        """
        if (command := find(command_in(text) or "", self.commands)) is None:
            return False
        self.session = session
        if command.name == "/undo" and self.changed_in_editor:
            names = ", ".join(sorted(map(visible, self.changed_in_editor)))
            self._updates.say(
                f"warning: changed in the editor: {names}. /undo restores the text that was saved; "
                "changes that were not saved come back with undo in the editor."
            )
        try:
            reply = await run_command(text, self)
        except Reopen as reopen:
            raise UsageError("this command is for the terminal only") from reopen
        if reply is not None:
            self._updates.say(_as_text(reply))
        return True

    def take_prompt(self) -> str | None:
        """The prompt that the command sends to the model; None if it sends none."""
        prompt, self._prompt = self._prompt, None
        return prompt

    # Chat

    def send(self, prompt: str, *, adds_files: bool = True) -> None:
        self._prompt = prompt

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
